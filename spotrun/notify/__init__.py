"""Sends news of a run to people and programs."""
