"""The loaders of one Trainer, exchanged for exact ones beneath what accelerate makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotrun.training.data.loader import LoaderProxy
from spotrun.training.framework import Hooks, Stage
from spotrun.transformers.taps import Taps

BENEATH = "base_dataloader"
"""The attribute of a loader of accelerate that holds the one it reads."""


def begins_anywhere(loader: Any) -> bool:
    """It is exact, or the one beneath it is."""
    return type(vars(loader).get(BENEATH, loader)) is LoaderProxy


class Loaders:
    """What `get_train_dataloader` and `get_eval_dataloader` give while one train() runs."""

    def __init__(self, trainer: Any, taps: Taps) -> None:
        self._trainer = trainer
        self._taps = taps
        self._exchanged: list[tuple[Any, Any]] = []
        self._made: dict[Stage, dict[int, Any]] = {"train": {}, "validate": {}}
        self._outer: Any = None

    def exchange(self, hooks: Hooks, epoch: Callable[[], int]) -> None:
        """From now on. `epoch` says which one runs."""

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
        if any(loader is one for one, _ in self._exchanged):  # it is kept, with persistent workers
            return loader
        beneath = vars(loader).get(BENEATH)
        exact = hooks.exact(loader if beneath is None else beneath, stage)
        self._made[stage][id(getattr(loader, "dataset", loader))] = exact
        if beneath is None:
            return exact
        self._exchanged.append((loader, beneath))
        setattr(loader, BENEATH, exact)
        return loader

    def of(self, stage: Stage) -> Sequence[Any]:
        """Those in use: the newest of each dataset."""
        return list(self._made[stage].values())

    def begin(self) -> None:
        """A pass over the training data, from which nobody reads."""
        for exact in self._made["train"].values():
            iter(exact)

    @property
    def batches(self) -> int:
        """How many a pass over the training data has, 0 if that is unknown."""
        try:
            return len(self._outer)
        except TypeError:
            return 0

    @property
    def has_ended(self) -> bool:
        """The batch that was read last is the last of its pass, as far as accelerate knows."""
        return bool(vars(self._outer).get("end_of_dataloader", False))

    def close(self) -> None:
        """What the script keeps is as it was."""
        for loader, beneath in self._exchanged:
            setattr(loader, BENEATH, beneath)
        self._exchanged.clear()
