"""What lies in a run's folder on the store, and beside it."""
