"""Supports scripts that Hydra configures: gives a script's output folder the same name in all attempts of a run."""
