"""
Selects, surveys, stores and restores the files of a script. If the script does not use spotrun's callback, the files
that hold its state are among them.
"""
