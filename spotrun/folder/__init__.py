"""Reads and writes the objects in a run's folder on the store, and next to it."""
