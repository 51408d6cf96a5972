"""How runs are shown: on a terminal, as JSON and CSV, and as HTML."""
