"""Rejects collective calls within a micro-batch: processes with different numbers of micro-batches would deadlock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import distributed

NAMES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_object", "all_to_all"),
    *("all_to_all_single", "reduce_scatter_single"),
    *("barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "recv", "isend", "irecv"),
)


@contextmanager
def rejected(reject: Callable[[str], NoReturn]) -> Iterator[None]:
    """Within this context, each function of `torch.distributed` that communicates calls `reject` with its name."""
    before = {name: getattr(distributed, name) for name in NAMES if hasattr(distributed, name)}

    def rejects(name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> NoReturn:
            reject(name)

        return call

    for name in before:
        setattr(distributed, name, rejects(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(distributed, name, function)
