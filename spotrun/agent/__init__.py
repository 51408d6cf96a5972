"""The program on each instance: it restores, trains, saves, and hands over in time."""
