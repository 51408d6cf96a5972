"""Trains a job without interruption and with interruptions, and compares the results."""
