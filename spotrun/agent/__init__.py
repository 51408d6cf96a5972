"""The program on each instance. It restores, trains and saves, and hands over in time."""
