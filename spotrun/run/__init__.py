"""The events of a run, and the fold that computes the run's state from them. No function has side effects."""
