"""Compares the ledger with what the cloud charged."""
