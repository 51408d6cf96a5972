"""Tells people and programs what happened to a run."""
