"""
Handles a set of files: the rules that select them, their survey, storage and restore. There are two such sets: the
files of a training, and the state of a command.
"""
