"""Shows the runs of a store in a web browser, and keeps the pages up to date."""
