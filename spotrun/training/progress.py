"""Reports progress and completed epochs to the agent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from spotrun.trainer_link import EpochEnded, Progress
from spotrun.training.counting import Counting
from spotrun.training.framework import Framework
from spotrun.training.session import Agent

PROGRESS_INTERVAL_S = 0.1


class ProgressReporter:
    """
    Reports the progress of one training to the agent, at most once in PROGRESS_INTERVAL_S. Its methods take the
    framework's epoch number, and report the run's epoch number.
    """

    def __init__(
        self,
        framework: Framework,
        agent: Agent,
        counting: Counting,
        waited_s: Callable[[], float],
        samples: Callable[[int], int],
    ) -> None:
        """
        Create a reporter. `waited_s()` returns the seconds that training has waited for data (Progress.data_s).
        `samples(n)` returns the number of samples in the first n batches of the epoch.
        """
        self._framework = framework
        self._agent = agent
        self._counting = counting
        self._waited_s = waited_s
        self._samples = samples
        self._told_at = float("-inf")

    def progress(self, phase: Literal["train", "validate"], *, always: bool = False) -> None:
        now = time.monotonic()
        if not always and now - self._told_at < PROGRESS_INTERVAL_S:
            return
        self._told_at = now
        here = self._framework
        self._agent.tell(
            Progress(
                epoch=self._counting.epoch(here.epoch),
                batch=here.batch,
                batches=here.batches,
                step=self._counting.step(here.step),
                epochs=self._counting.epoch(here.epochs) if here.epochs else 0,
                phase=phase,
                metrics=finite_metrics(here),
                data_s=self._waited_s(),
                samples=self._samples(here.batch),
            )
        )

    def epoch_ended(self, epoch: int, batches: int, samples: int) -> None:
        self._agent.tell(
            EpochEnded(
                epoch=self._counting.epoch(epoch),
                step=self._counting.step(self._framework.step),
                batches=batches,
                samples=samples,
                metrics=finite_metrics(self._framework),
            )
        )


def finite_metrics(framework: Framework) -> dict[str, float]:
    """Return the newest metrics, without those that are not finite numbers, because JSON cannot contain these."""
    values = {name: _number(value) for name, value in framework.metrics().items()}
    return {name: value for name, value in values.items() if value is not None}


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if number - number == 0 else None
