"""Supports scripts that Hydra configures: a script's output folder keeps its name in all attempts of a run."""
