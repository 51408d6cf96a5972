"""Compares two trainings bit for bit."""
