"""The ledger against what the cloud says that it charged."""
