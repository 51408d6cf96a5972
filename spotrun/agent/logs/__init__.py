"""
Sends an instance's console to the store: the output of the job's `setup` and of the training. Hides the run's secrets
in everything that leaves the instance.
"""
