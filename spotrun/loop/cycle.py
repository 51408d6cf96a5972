"""An endless iterator over a loader, whose place is in each checkpoint: `Loop.cycle`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spotrun.loop import prepared
from spotrun.training.data.loader import ExactLoader
from spotrun.training.framework import State
from spotrun.training.place import PassStart
from spotrun.training.unsupported import TrainingUnsupported

_END = object()


class Cycle(Iterator[Any]):
    """
    Yields the batches of `loader` without end: after its last batch, the next pass over it begins, in an order of its
    own. The iterator can be read while its Loop runs.

    Raises, at `next`:
        TrainingUnsupported: no Loop is running, or the loader has no batch.
    """

    def __init__(self, loader: Any) -> None:
        self._whole = loader
        self._exact: ExactLoader | None = None
        self._pass = self._batch = 0
        self._batches: Iterator[Any] | None = None
        self._moved_to: State = {}
        self._at_epoch: State = {}
        self._saved: State | None = None

    def __next__(self) -> Any:
        if self._exact is None:
            raise TrainingUnsupported(
                "loop.cycle: its batches were read while the loop was not running",
                hint="call next() within loop.epochs or loop.steps",
            )
        if self._batches is not None and (batch := next(self._batches, _END)) is not _END:
            self._batch += 1
            return batch
        if self._batches is not None:
            self._pass, self._batch = self._pass + 1, 0
        batch = self._first_of_pass(self._exact)
        if batch is _END and self._batch:  # a resume after the last batch of a pass
            self._pass, self._batch = self._pass + 1, 0
            batch = self._first_of_pass(self._exact)
        if batch is _END:
            raise TrainingUnsupported(
                "loop.cycle: the loader has no batch", hint="give it more data, or leave out drop_last=True"
            )
        self._batch += 1
        return batch

    def _first_of_pass(self, exact: ExactLoader) -> Any:
        """
        Begin a pass, and return its first batch; _END if there is none. The wrapper of a library reads the exact loader
        only if it holds that one when its first batch is read.
        """
        whole = prepared.exchange(self._whole, lambda _: exact.proxy)
        try:
            self._batches = iter(whole)
            return next(self._batches, _END)
        finally:
            prepared.exchange(self._whole, lambda _: exact.loader)

    # --- its place

    @property
    def loader(self) -> Any:
        """The script's own loader, without a library's wrapper."""
        return prepared.loader_in(self._whole)

    def start(self, _: ExactLoader) -> PassStart:
        return PassStart(self._pass, self._batch)

    def open(self, exact: ExactLoader | None, saved: State | None = None) -> None:
        """
        Read `exact` from now on, until `open(None)`. `saved` is what `state` returned in an earlier process. The code
        of an epoch that a resume repeats, up to the epoch's first batch, reads what it read then; `put_back` goes on
        from there to the place of the snapshot.
        """
        self._exact = exact
        self._saved = saved
        self._move({"pass": 0, "batch": 0, "loader": None} if saved is None else saved["epoch"])

    def put_back(self) -> None:
        if self._saved is not None:
            self._move(self._saved["now"])
            self._at_epoch, self._saved = self._saved["epoch"], None

    def epoch_begins(self) -> None:
        self._at_epoch = self._here()

    def state(self) -> State:
        return {"now": self._here(), "epoch": self._at_epoch}

    def _move(self, place: State) -> None:
        self._pass, self._batch, self._moved_to = place["pass"], place["batch"], place
        self._batches = None
        if self._exact is not None:
            self._exact.resume(place["loader"])

    def _here(self) -> State:
        if self._batches is None or self._exact is None:
            return self._moved_to
        inside = self._exact.state(self._pass, self._batch, epoch_ended=False)
        return {"pass": self._pass, "batch": self._batch, "loader": inside}
