"""Makes an immutable `RunSpec` from a job file and flags, or lists every problem with its line number."""
