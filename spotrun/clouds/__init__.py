"""Clouds behind one port: each is a driver, and what belongs to it."""
