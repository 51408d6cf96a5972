"""Notifies people and programs of the important events of a run."""
