"""Measures how fast a training runs on each instance type that may train it, by short runs of the job itself."""
