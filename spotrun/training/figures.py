"""
Logs the run's cost so far through the loggers of the training framework, next to the training's metrics.

The cost is not logged as a metric of the framework. The framework's metrics must be bit-identical with and without
interruptions, because schedulers and early stopping read them, but the cost depends on the interruptions.
"""

from __future__ import annotations

import threading

from spotrun.trainer_link import Figures
from spotrun.training.framework import Framework

LAST_WAIT_S = 1.0
"""Maximum seconds of system time for which the end of training waits for the last epoch's figures."""


class FiguresBox:
    """
    The newest figures that the agent has sent. The thread that receives messages stores them here, and the training
    thread takes them between batches.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: Figures | None = None
        self._epochs = -1

    def put(self, figures: Figures) -> None:
        with self._changed:
            self._newest, self._epochs = figures, figures.epochs
            self._changed.notify_all()

    def take(self) -> Figures | None:
        """Return the newest figures; None if an earlier call has already returned them."""
        with self._changed:
            newest, self._newest = self._newest, None
        return newest

    def wait(self, epochs: int, timeout_s: float) -> None:
        """
        Wait until the agent has sent figures for `epochs` epochs. Return immediately if it has sent no figures yet.
        """
        with self._changed:
            if self._epochs >= 0:
                self._changed.wait_for(lambda: self._epochs >= epochs, timeout_s)


def log(framework: Framework, box: FiguresBox) -> None:
    if (told := box.take()) is not None:
        framework.log(told.metrics())


def log_last(framework: Framework, box: FiguresBox, epochs: int) -> None:
    """
    Log the figures of the whole run at the end of training. The agent sends them after the last of the run's `epochs`
    epochs, so wait for them.
    """
    box.wait(epochs, LAST_WAIT_S)
    log(framework, box)
