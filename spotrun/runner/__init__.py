"""Creates a run, and attends to it: observes, decides, acts and records until it has ended."""
