"""Manages an instance's processors, GPUs and process groups, and the Python environment of the run."""
