"""The exact order of the data, and the random numbers that are drawn with it."""
