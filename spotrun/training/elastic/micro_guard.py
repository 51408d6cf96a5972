"""
Rejects calls within a micro-batch that would not mean the same with another number of processes.

Processes with different numbers of micro-batches would wait for each other in a collective call forever. And gradients
are set aside before each micro-batch, so there is none that `zero_grad` could remove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import distributed, nn
from torch.optim import Optimizer

COLLECTIVE = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_object", "all_to_all"),
    *("all_to_all_single", "reduce_scatter_single"),
    *("barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "recv", "isend", "irecv"),
)
FUNCTIONS: tuple[tuple[Any, str], ...] = (
    *((distributed, name) for name in COLLECTIVE if hasattr(distributed, name)),
    (Optimizer, "zero_grad"),
    (nn.Module, "zero_grad"),
)


@contextmanager
def rejected(reject: Callable[[str], NoReturn]) -> Iterator[None]:
    """Within this context, each of these functions calls `reject` with its name."""
    before = [getattr(holder, name) for holder, name in FUNCTIONS]

    def rejects(name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> NoReturn:
            reject(name)

        return call

    for holder, name in FUNCTIONS:
        setattr(holder, name, rejects(name))
    try:
        yield
    finally:
        for (holder, name), function in zip(FUNCTIONS, before, strict=True):
            setattr(holder, name, function)
