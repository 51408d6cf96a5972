"""Writes reports as HTML. Each report is one file that loads no other file."""
