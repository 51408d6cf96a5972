"""
Selects, surveys, stores and restores the files of a script: those that belong to a training, and those that are the
state of a command.
"""
