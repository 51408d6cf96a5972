"""
Trains with the same bits on any number of processes.

The batch is divided among a fixed number of *virtual ranks*, and each process trains the micro-batches of a stretch of
them, one after another. Everything that could change the result depends on the virtual ranks alone: the samples and
random numbers of a micro-batch, and the order in which gradients are added. So it does not matter how many processes
share the virtual ranks.
"""
