"""References to secrets, reading of their values, and redaction of secrets in text."""
