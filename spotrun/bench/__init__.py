"""Measures in short runs how fast a job trains on each instance type that it allows."""
