"""Trains a job once without and once with interruptions, and compares the results."""
