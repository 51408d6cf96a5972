"""
Every private name of Lightning that spotrun uses, and nothing else that is private is used anywhere.

`names.moved(trainer)` names what a newer Lightning has moved. tests/runs/test_lightning_exact.py fails with that list,
and a training under an agent is refused with it before it starts. Written against pytorch_lightning 2.6.6
(loops/fit_loop.py, loops/training_epoch_loop.py, trainer/connectors/*.py).
"""
