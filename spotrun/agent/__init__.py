"""
The agent: the program on each instance. It restores the newest checkpoint, trains, and saves new checkpoints. Before
the cloud takes the instance, it hands the run over to the next instance.
"""
