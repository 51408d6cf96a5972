"""
Saves and restores attributes that callbacks do not save: the last save of a ModelCheckpoint, from which it decides
whether to save once more; and the rates logged by a LearningRateMonitor, which makes new lists when training starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotrun.lightning.connectors.names import OF_PARTS
from spotrun.training.by_name import is_a

SAVING, RATES = "ModelCheckpoint", "LearningRateMonitor"
NAMES = {
    SAVING: (*OF_PARTS[SAVING], "_defer_save_until_validation"),
    RATES: ("lrs", "last_momentum_values", "last_weight_decay_values"),
}
"""Attributes by class. Those that are not in OF_PARTS are missing in some supported versions of Lightning."""


def dump(trainer: Any, cls: str) -> list[dict[str, Any]]:
    return [
        {name: getattr(callback, name) for name in NAMES[cls] if hasattr(callback, name)}
        for callback in _callbacks(trainer, cls)
    ]


def load(trainer: Any, cls: str, saved: Sequence[dict[str, Any]]) -> None:
    """
    Restore attributes of the class `cls`: SAVING in on_fit_start; RATES after the callback's on_train_start, or at the
    end of a training that had no step left.
    """
    for callback, values in zip(_callbacks(trainer, cls), saved, strict=True):
        for name, value in values.items():
            setattr(callback, name, value)


def _callbacks(trainer: Any, cls: str) -> list[Any]:
    return [callback for callback in trainer.callbacks if is_a(callback, cls)]
