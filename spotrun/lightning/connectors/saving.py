"""
Saves and restores the last save of a ModelCheckpoint, which forgets it. It decides by that whether to save once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotrun.lightning.connectors.names import OF_PARTS
from spotrun.training.by_name import is_a

NAMES = (*OF_PARTS["ModelCheckpoint"], "_defer_save_until_validation")
"""The last one is not in every Lightning that spotrun works with."""


def dump(trainer: Any) -> list[dict[str, Any]]:
    return [
        {name: getattr(callback, name) for name in NAMES if hasattr(callback, name)} for callback in callbacks(trainer)
    ]


def load(trainer: Any, saved: Sequence[dict[str, Any]]) -> None:
    """Restore them in on_fit_start."""
    for callback, values in zip(callbacks(trainer), saved, strict=True):
        for name, value in values.items():
            setattr(callback, name, value)


def callbacks(trainer: Any) -> list[Any]:
    """Return each ModelCheckpoint, and each of a subclass."""
    return [callback for callback in trainer.checkpoint_callbacks if is_a(callback, "ModelCheckpoint")]
