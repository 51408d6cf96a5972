"""The code that agent and trainer share, with only the standard library: a trainer's Python may lack others."""
