"""Parses references to secrets, reads the secrets' values, and hides them in text."""
