"""
Sends an instance's console to the store: the output of the job's `setup` and of the training. Hides the run's secrets
in the console, and in the events and statuses that an agent writes.
"""
