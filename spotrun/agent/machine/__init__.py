"""The machine: processors, GPUs, process groups, and the Python environment of the run."""
