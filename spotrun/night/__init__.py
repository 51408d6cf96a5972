"""Starts a job's run every night from a function in the cloud, which then attends to the run once a minute."""
