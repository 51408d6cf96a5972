"""The code that agent and trainer share. It uses only the standard library: a trainer's Python may lack all else."""
