"""The events of a run, and the pure fold that computes the run's state from them."""
