"""
The three kinds of program that an attempt can run: a training that takes snapshots, a command that keeps its state in
files, and a command whose state spotrun does not save.
"""
