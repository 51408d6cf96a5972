"""Supports scripts configured with Hydra: a script's output folder keeps its name in all attempts of a run."""
