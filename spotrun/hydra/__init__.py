"""Scripts that Hydra configures: their folders keep their names through all attempts of a run."""
