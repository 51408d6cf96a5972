"""Shows runs: on a terminal, as JSON and CSV, and as HTML."""
