"""What the user wants: a job file and flags become one immutable `RunSpec`, or every problem with its line."""
