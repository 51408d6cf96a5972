"""Makes the order of the data, and all random numbers that are drawn while data is read, exactly reproducible."""
