"""
The kinds of program that an attempt may run: a training with snapshots, a command that keeps its state in files, or a
command that keeps no state.
"""
