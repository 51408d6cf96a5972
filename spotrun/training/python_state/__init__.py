"""Saves and restores what a script keeps in plain Python objects, as part of a checkpoint."""
