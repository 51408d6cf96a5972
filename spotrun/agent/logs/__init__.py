"""
Sends an instance's console to the store: the output of the job's `setup` and of the training. Hides the secrets in
everything that an agent writes.
"""
