"""Snapshots that wait to be saved: arenas in memory, and frozen files."""
