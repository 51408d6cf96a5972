"""The console of an instance: ships it to the store, and hides the secrets in everything that an agent writes."""
