"""
Sends an instance's console, the output of its setup and training, to the store. Hides the secrets in everything that an
agent writes.
"""
