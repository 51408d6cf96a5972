"""
Uploads the output of the job's `setup` and of the training to the store. Hides the run's secrets in this output, and in
the events and status objects that an agent writes.
"""
