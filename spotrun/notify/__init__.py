"""Sends the news of a run to people and programs."""
