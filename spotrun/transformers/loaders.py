"""
Replaces the data loaders of one Trainer with exact loaders, which can start at any batch and always give the same
batches. If accelerate has wrapped a loader, the loader inside the wrapper is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from spotrun.training.by_name import is_a
from spotrun.training.data.loader import LoaderProxy
from spotrun.training.data.proxy import Proxy
from spotrun.training.hooks import Hooks, Stage
from spotrun.transformers.taps import Taps

BENEATH = "base_dataloader"
"""The attribute in which accelerate's loader keeps the loader that it wraps."""


def begins_anywhere(loader: Any) -> bool:
    """
    Return True if `loader` can start at any batch, because it or the loader inside it is one of spotrun's exact
    loaders.
    """
    return type(vars(loader).get(BENEATH, loader)) in (LoaderProxy, ReadWhenUsed)


class ReadWhenUsed(Proxy):
    """
    An exact loader for accelerate's loader, which asks for each batch before it returns the batch before it. A batch is
    read only when accelerate moves it to its device, which is when the training asks for it. So whatever the script's
    dataset and collate function have counted, and whatever the training has changed in them, is as it was without
    accelerate's reading ahead, and a snapshot contains it as it is.
    """

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._inner)
        return self._to_be_read(batches, self._inner.exact.begun.batch)

    def __len__(self) -> int:
        return len(self._inner)

    def _to_be_read(self, batches: Iterator[Any], first: int) -> Iterator[Any]:
        for number in count(first):
            if not self._inner.exact.order.has(number):
                break
            yield _Unread(batches)
        yield from batches  # none, but the pass knows that it has ended


class _Unread:
    """
    A batch that is read when it is moved to a device. accelerate tries a second time after a TypeError, which may be
    the script's own: this raises it again, and reads nothing more.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._mistake: TypeError | None = None

    def to(self, device: Any, **how: Any) -> Any:
        from accelerate.utils import send_to_device

        if self._mistake is not None:
            raise self._mistake
        try:
            batch = next(self._batches)
        except TypeError as mistake:
            self._mistake = mistake
            raise
        return send_to_device(batch, device, **how)


def reads_ahead(outer: Any, exact: Any) -> bool:
    """Return True if accelerate's loader `outer` would make this process read each batch one step too early."""
    moves = is_a(outer, "DataLoaderShard") and outer.device is not None
    return moves and type(exact) is LoaderProxy and exact.exact.order is not None and exact.num_workers == 0


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
        setattr(loader, BENEATH, ReadWhenUsed(exact) if reads_ahead(loader, exact) else exact)
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
