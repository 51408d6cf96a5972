"""The user's wish: a job file and flags become one immutable `RunSpec`, or a list of every problem with its line."""
