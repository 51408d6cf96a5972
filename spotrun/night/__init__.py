"""Starts a job's run every night from a function in the cloud, which then takes care of the run once a minute."""
