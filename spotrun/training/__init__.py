"""One training under an agent, for any framework: snapshots, exact resume, exact order of the data."""
