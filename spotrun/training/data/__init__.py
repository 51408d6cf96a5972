"""Makes reading data exactly reproducible: its order, and all random numbers that are drawn while it is read."""
