"""Measures how fast a job trains on each instance type that it allows, in short runs."""
