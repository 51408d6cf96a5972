"""Saves and restores the state that a script keeps in plain Python objects, as part of a checkpoint."""
