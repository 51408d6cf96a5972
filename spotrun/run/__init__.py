"""The events of a run, and the fold, which computes the run's state from them without side effects."""
