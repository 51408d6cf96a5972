"""Where the values of secrets are, how they are read, and how they are recognised in text."""
