"""
Trains a job every night without the user's machine: a function in the cloud starts the run, and then takes care of it
once a minute.
"""
