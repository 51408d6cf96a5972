"""Keeps accelerate's loaders from reading a batch before the training comes to it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from spotrun.training.by_name import is_a
from spotrun.training.data.loader import LoaderProxy
from spotrun.training.data.proxy import Proxy


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


def read_when_used(outer: Any, exact: Any) -> Any:
    """
    Return the loader for accelerate's loader `outer` to read: `exact`, or a ReadWhenUsed if this process would
    otherwise read each batch of it one step too early.
    """
    moves = is_a(outer, "DataLoaderShard") and outer.device is not None
    if moves and type(exact) is LoaderProxy and exact.exact.order is not None and exact.num_workers == 0:
        return ReadWhenUsed(exact)
    return exact
