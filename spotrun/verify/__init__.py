"""Train straight, train interrupted, compare."""
