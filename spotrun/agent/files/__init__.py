"""
Selects, surveys, stores and restores the files of a script. If spotrun's callback is not in the script, these include
the files that hold the script's state.
"""
