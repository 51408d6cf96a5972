"""
Contains all code of spotrun that uses private names of Lightning.

`names.moved(trainer)` lists the private names that are missing from the installed Lightning. If any are missing,
tests/runs/test_lightning_exact.py fails and prints them, and spotrun refuses to train under an agent and lists them in
the error. The code is written for pytorch_lightning 2.6.6 (loops/fit_loop.py, loops/training_epoch_loop.py,
trainer/connectors/*.py).
"""
