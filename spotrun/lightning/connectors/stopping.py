"""
Saves and restores EarlyStopping's counters on every rank.

Lightning saves only the counters of rank 0. If a metric is logged without `sync_dist`, each rank monitors its own value
of the metric, so its counters can differ from those of rank 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotrun.training.by_name import is_a

State = dict[str, Any]


def dump(trainer: Any) -> list[State]:
    return [callback.state_dict() for callback in callbacks(trainer)]


def load(trainer: Any, saved: Sequence[State]) -> None:
    """
    Restore each rank's own counters. Called in on_fit_start, after Lightning has given every rank those of rank 0.
    """
    for callback, state in zip(callbacks(trainer), saved, strict=True):
        callback.load_state_dict(state)


def callbacks(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.early_stopping_callbacks if is_a(callback, "EarlyStopping")]
