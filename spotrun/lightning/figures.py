"""
What the run has cost so far, where people already look: as metrics of every logger of the Trainer.

They go to the loggers directly and never through `self.log`: `callback_metrics`, which schedulers and early stopping
read, have to be the same bits in an interrupted training as in a straight one, and dollars are not.
"""

from __future__ import annotations

import threading
from typing import Any

from spotrun.lightning.connectors import position
from spotrun.trainer_link import Figures

LAST_WAIT_S = 1.0
"""System time that the end of training waits for what the agent says of the last epoch."""


class FiguresBox:
    """What the agent told last. Filled by the thread that listens, emptied between two batches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: Figures | None = None
        self._epochs = -1

    def put(self, figures: Figures) -> None:
        with self._changed:
            self._newest, self._epochs = figures, figures.epochs
            self._changed.notify_all()

    def take(self) -> Figures | None:
        """What has not been taken yet."""
        with self._changed:
            newest, self._newest = self._newest, None
        return newest

    def wait(self, epochs: int, timeout_s: float) -> None:
        """Until so many epochs are in what was told; not at all of an agent that tells nothing."""
        with self._changed:
            if self._epochs >= 0:
                self._changed.wait_for(lambda: self._epochs >= epochs, timeout_s)


def log(trainer: Any, box: FiguresBox) -> None:
    """Each telling once, on the training thread."""
    told = box.take()
    if told is None:
        return
    taken = trainer.logged_metrics  # names that the script has for something of its own
    metrics = {name: value for name, value in told.metrics().items() if name not in taken}
    for logger in trainer.loggers:
        logger.log_metrics(metrics=metrics, step=position.logged_step(trainer))
        logger.save()


def log_last(trainer: Any, box: FiguresBox) -> None:
    """At the end of training: with the last epoch in them."""
    box.wait(position.epoch(trainer), LAST_WAIT_S)
    log(trainer, box)
