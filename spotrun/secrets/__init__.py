"""Secrets: where their values are, how to read them, and how to recognise them in text."""
