"""
Contains every use of a private Lightning name in spotrun.

`names.moved(trainer)` lists the private names that the installed Lightning lacks. If there are any,
tests/runs/test_lightning_exact.py fails and prints them, and spotrun refuses to train under an agent, naming them as
the reason. Written against pytorch_lightning 2.6.6 (loops/fit_loop.py, loops/training_epoch_loop.py,
trainer/connectors/*.py).
"""
