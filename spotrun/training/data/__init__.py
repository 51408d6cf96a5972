"""Makes reading data exactly reproducible: the order of the data, and all random numbers that are drawn on the way."""
