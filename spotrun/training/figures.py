"""
Logs the run's cost so far as metrics through the training framework's loggers, where people already look.

The figures go only to the loggers, not into the framework's metrics. Schedulers and early stopping read the framework's
metrics, which must therefore be bit-identical in an interrupted and an uninterrupted training. The run's cost
differs between the two.
"""

from __future__ import annotations

import threading

from spotrun.trainer_link import Figures
from spotrun.training.framework import Framework

LAST_WAIT_S = 1.0
"""Maximum seconds of system time for which the end of training waits for the last epoch's figures."""


class FiguresBox:
    """The agent's newest figures. The listening thread puts them in; the training thread takes them between batches."""

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
        Wait until the agent's figures cover `epochs` epochs. Return immediately if the agent has sent no figures yet.
        """
        with self._changed:
            if self._epochs >= 0:
                self._changed.wait_for(lambda: self._epochs >= epochs, timeout_s)


def log(framework: Framework, box: FiguresBox) -> None:
    if (told := box.take()) is not None:
        framework.log(told.metrics())


def log_last(framework: Framework, box: FiguresBox, epochs: int) -> None:
    """Log the figures at the end of training, once the agent has sent those of the last of the run's `epochs`."""
    box.wait(epochs, LAST_WAIT_S)
    log(framework, box)
