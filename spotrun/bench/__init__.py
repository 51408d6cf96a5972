"""Measures how fast a job trains on each instance type that may train it, by short runs of the job."""
