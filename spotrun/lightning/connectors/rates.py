"""
Saves and restores the logged rates that a LearningRateMonitor forgets, as it makes new lists when training starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotrun.training.by_name import is_a

NAMES = ("lrs", "last_momentum_values", "last_weight_decay_values")


def dump(trainer: Any) -> list[dict[str, Any]]:
    return [
        {name: getattr(callback, name) for name in NAMES if hasattr(callback, name)} for callback in callbacks(trainer)
    ]


def load(trainer: Any, saved: Sequence[dict[str, Any]]) -> None:
    """Restore them after its on_train_start, or at the end of a training that had no step left."""
    for callback, values in zip(callbacks(trainer), saved, strict=True):
        for name, value in values.items():
            setattr(callback, name, value)


def callbacks(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if is_a(callback, "LearningRateMonitor")]
