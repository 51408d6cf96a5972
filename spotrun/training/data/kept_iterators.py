"""
Makes the iterators that a script begins over its own map-style loaders resumable: `it = iter(unlabelled)`, read by
`next(it)` in each step, and begun again at its end.

PyTorch's iterator cannot tell its place. So a loader's `__iter__` returns a `KeptIterator` here. As in PyTorch, one
number is drawn for it from the loader's generator, or else from the global one. This number determines the order of the
data and the random numbers with which samples are read. So the place is two numbers, which checkpoints contain.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from spotrun.training import seeds
from spotrun.training.data import data_order, generators
from spotrun.training.python_state.kept_iterator import KeptIterator

INSTALLED = "is_kept_by_spotrun"


def install(_: ModuleType | None = None) -> None:
    """
    Replace `DataLoader.__iter__` in this process. Further calls have no effect. The first call comes when the script
    imports its training framework, because it may begin its iterators before the training.
    """
    original = DataLoader.__iter__
    if hasattr(original, INSTALLED):
        return

    def begin(loader: DataLoader[Any], key: int, number: int) -> Iterator[Any]:
        met = distributed.is_available() and distributed.is_initialized()
        rank = distributed.get_rank() if met else 0
        own = data_order.order_generators(loader)
        before = generators.states(own)
        with seeds.kept():
            found = original(data_order.exact_copy(loader, 0, rank, lambda: (("kept", key), number)))
        generators.set_states(own, before)
        return found

    def iterator(loader: DataLoader[Any]) -> Any:
        if not _is_of_script(loader):
            return original(loader)
        return KeptIterator(loader, int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator)))

    setattr(iterator, INSTALLED, True)
    KeptIterator.begin = staticmethod(begin)
    DataLoader.__iter__ = iterator  # type: ignore[method-assign]


def _is_of_script(loader: DataLoader[Any]) -> bool:
    """
    Return True for a loader of the script that has a place: over indexed data, with a length. The copies with which
    spotrun reads the data of the training are no such loaders. Nor is a loader that another thread reads: reading an
    exact copy sets the global random number generators for a moment, and the training draws from them meanwhile.
    """
    if isinstance(loader.dataset, IterableDataset) or data_order.order_of(loader) is not None or get_worker_info():
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        len(loader)
    except TypeError:
        return False
    return True
