"""One training under an agent, whatever framework runs its loop."""
