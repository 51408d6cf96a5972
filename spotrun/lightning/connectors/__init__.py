"""
Contains every use of a private Lightning name in spotrun.

`names.moved(trainer)` lists the names that a newer Lightning has moved. tests/runs/test_lightning_exact.py then fails
with that list, and a training under an agent ends with it before it starts. Written against pytorch_lightning 2.6.6
(loops/fit_loop.py, loops/training_epoch_loop.py, trainer/connectors/*.py).
"""
