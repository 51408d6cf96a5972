"""
The three kinds of program that an attempt can run: a training of which snapshots are taken, a command that keeps its
state in files, and a command whose state spotrun does not save.
"""
