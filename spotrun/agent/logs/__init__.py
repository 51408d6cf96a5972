"""The console of an instance: ships it, and redacts the secrets in all that an agent writes."""
