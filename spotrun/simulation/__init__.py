"""Runs and markets that never were, to forecast a job and to compare strategies."""
