"""Writes reports as HTML. Each report is one self-contained file."""
