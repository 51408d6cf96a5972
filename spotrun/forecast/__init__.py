"""Simulates runs and markets, to forecast a job and to compare strategies."""
