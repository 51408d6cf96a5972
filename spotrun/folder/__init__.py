"""Reads and writes the objects in a run's folder on the store, and the objects next to that folder."""
