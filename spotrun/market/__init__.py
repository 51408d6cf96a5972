"""Prices and speeds of offerings, and how often their instances are lost."""
