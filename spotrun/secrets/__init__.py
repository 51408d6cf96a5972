"""Refers to secrets, reads their values, and hides secrets in text."""
