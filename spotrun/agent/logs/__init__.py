"""The console of an instance: its shipping, and the redaction of secrets in all that an agent writes."""
