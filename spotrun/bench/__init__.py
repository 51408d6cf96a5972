"""Measures, by short runs of a job, how fast the job trains on each instance type that it allows."""
