"""Creates a run, and takes care of it: observes, decides, acts and records until it has ended."""
