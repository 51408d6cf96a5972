"""Trains straight, trains interrupted, and compares."""
