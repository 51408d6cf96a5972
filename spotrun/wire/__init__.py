"""The code that agent and trainer share, of the standard library alone: a trainer's Python may have nothing of ours."""
