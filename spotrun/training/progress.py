"""What the agent is told about a training besides its snapshots: progress, and epochs that ended."""

from __future__ import annotations

import time
from typing import Any, Literal

from spotrun.lightning.connectors import position, state
from spotrun.trainer_link import EpochEnded, Progress
from spotrun.training.session import Agent

PROGRESS_INTERVAL_S = 0.1


class Story:
    """Tells of one Trainer, and not more often than anybody can read."""

    def __init__(self, trainer: Any, agent: Agent) -> None:
        self._trainer = trainer
        self._agent = agent
        self._told_at = float("-inf")

    def progress(self, phase: Literal["train", "validate"], *, always: bool = False) -> None:
        now = time.monotonic()
        if not always and now - self._told_at < PROGRESS_INTERVAL_S:
            return
        self._told_at = now
        epochs = self._trainer.max_epochs
        self._agent.tell(
            Progress(
                epoch=position.epoch(self._trainer),
                batch=position.batches_done(self._trainer),
                batches=position.batches(self._trainer),
                step=self._trainer.global_step,
                epochs=epochs if epochs and epochs > 0 else 0,
                phase=phase,
                metrics=metrics(self._trainer),
            )
        )

    def epoch_ended(self, epoch: int, batches: int, samples: int) -> None:
        self._agent.tell(
            EpochEnded(
                epoch=epoch,
                step=self._trainer.global_step,
                batches=batches,
                samples=samples,
                metrics=metrics(self._trainer),
            )
        )


def metrics(trainer: Any) -> dict[str, float]:
    """The last known metrics that are finite numbers, which is what JSON can say."""
    values = {name: _number(value) for name, value in state.last_metrics(trainer).items()}
    return {name: value for name, value in values.items() if value is not None}


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if number - number == 0 else None
