"""
Scripts that own their loop, as people write them. Each is run as `__main__` with its job as the one argument, calls
`tick()` where it may be killed, and gives its result to `done`.
"""
