"""
Saves and restores those attributes of callbacks that the callbacks themselves do not save.

Two callbacks have such attributes. A ModelCheckpoint remembers when it last saved, to decide whether to save again. A
LearningRateMonitor keeps lists of the rates that it logged, but empties them when training starts.
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
"""
The attributes to save, keyed by the class of the callback. OF_PARTS has only attributes that every supported version of
Lightning has; the other attributes here are missing in some versions.
"""


def dump(trainer: Any, cls: str) -> list[dict[str, Any]]:
    return [
        {name: getattr(callback, name) for name in NAMES[cls] if hasattr(callback, name)}
        for callback in _callbacks(trainer, cls)
    ]


def load(trainer: Any, cls: str, saved: Sequence[dict[str, Any]]) -> None:
    """
    Restore the attributes of all callbacks of the class `cls`.

    The attributes in SAVING are restored in on_fit_start. Those in RATES are restored later, after the callback's own
    on_train_start, because that hook empties the lists. If no step is left to train, on_train_start is not called, so
    the attributes in RATES are restored at the end of fit().
    """
    for callback, values in zip(_callbacks(trainer, cls), saved, strict=True):
        for name, value in values.items():
            setattr(callback, name, value)


def _callbacks(trainer: Any, cls: str) -> list[Any]:
    return [callback for callback in trainer.callbacks if is_a(callback, cls)]
