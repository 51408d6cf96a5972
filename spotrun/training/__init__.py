"""Runs a training under an agent, in any framework: snapshots, exact resume, exact order of the data."""
