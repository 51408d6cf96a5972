"""Keeps files of the work folder in the run's folder: freezes, stores and restores them."""
