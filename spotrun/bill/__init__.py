"""Compares a run's ledger with the cloud's bill."""
