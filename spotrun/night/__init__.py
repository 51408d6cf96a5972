"""Begins a job every night from a function in the cloud, and attends to its run once a minute."""
