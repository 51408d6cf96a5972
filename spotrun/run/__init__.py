"""What can happen to a run, and what the run then is: events, and the pure fold of them."""
