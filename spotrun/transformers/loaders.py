"""
Replaces the data loaders of one Trainer with exact loaders, which can start at any batch and always give the same
batches. If accelerate has wrapped a loader, the loader inside the wrapper is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotrun.training.data.loader import LoaderProxy
from spotrun.training.data.of_accelerate import ReadWhenUsed, read_when_used
from spotrun.training.hooks import Hooks, Stage
from spotrun.training.taps import Taps

BENEATH = "base_dataloader"
"""The attribute in which accelerate's loader keeps the loader that it wraps."""


def begins_anywhere(loader: Any) -> bool:
    """
    Return True if `loader` can start at any batch, because it or the loader inside it is one of spotrun's exact
    loaders.
    """
    return type(vars(loader).get(BENEATH, loader)) in (LoaderProxy, ReadWhenUsed)


class Loaders:
    """The loaders that `get_train_dataloader` and `get_eval_dataloader` return during one train()."""

    def __init__(self, trainer: Any, taps: Taps) -> None:
        self._trainer = trainer
        self._taps = taps
        self._exchanged: list[tuple[Any, Any]] = []
        self._made: dict[Stage, dict[int, Any]] = {"train": {}, "validate": {}}
        self._outer: Any = None

    def exchange(self, hooks: Hooks, epoch: Callable[[], int]) -> None:
        """Replace all loaders that the Trainer creates from now on. `epoch` returns the current epoch."""

        def train(original: Any, *args: Any, **kwargs: Any) -> Any:
            with hooks.loading("train", 0):
                self._outer = self._exact(original(*args, **kwargs), "train", hooks)
            return self._outer

        def validate(original: Any, *args: Any, **kwargs: Any) -> Any:
            with hooks.loading("validate", epoch()):
                return self._exact(original(*args, **kwargs), "validate", hooks)

        self._taps.around(self._trainer, "get_train_dataloader", train)
        self._taps.around(self._trainer, "get_eval_dataloader", validate)

    def _exact(self, loader: Any, stage: Stage, hooks: Hooks) -> Any:
        if any(loader is one for one, _ in self._exchanged):  # the Trainer reuses a loader with persistent workers
            return loader
        beneath = vars(loader).get(BENEATH)
        exact = hooks.exact(loader if beneath is None else beneath, stage)
        self._made[stage][id(getattr(loader, "dataset", loader))] = exact
        if beneath is None:
            return exact
        self._exchanged.append((loader, beneath))
        setattr(loader, BENEATH, read_when_used(loader, exact))
        return loader

    def of(self, stage: Stage) -> Sequence[Any]:
        """Return the newest exact loader for each dataset."""
        return list(self._made[stage].values())

    def begin(self) -> None:
        """Begin a pass over the training data without reading a batch."""
        for exact in self._made["train"].values():
            iter(exact)

    @property
    def batches(self) -> int:
        """Number of batches in a pass over the training data; 0 if unknown."""
        try:
            return len(self._outer)
        except TypeError:
            return 0

    @property
    def has_ended(self) -> bool:
        """True if, according to accelerate, the newest batch was the last one of its pass."""
        return bool(vars(self._outer).get("end_of_dataloader", False))

    def close(self) -> None:
        """Put the script's own loaders back."""
        for loader, beneath in self._exchanged:
            setattr(loader, BENEATH, beneath)
        self._exchanged.clear()
