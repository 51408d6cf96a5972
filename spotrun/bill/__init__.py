"""Compares the ledger with the cloud's bill."""
