"""Supports scripts that Hydra configures: their folders keep their names in all attempts of a run."""
