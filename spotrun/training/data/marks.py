"""
Computes a batch's mark: a number that depends on the batch's tensors, arrays and plain values. When a stream is read
again, the marks show whether it yields the same batches.

After a resume, a stream whose position cannot be restored is read again from its beginning. If the training itself
changes the stream's data, as with a replay buffer, the batches differ from the original ones. Without marks, this would
go unnoticed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from spotrun.training.python_state.arrays import is_dense
from spotrun.training.python_state.fingerprints import sampled, sampled_tensor
from spotrun.training.python_state.values import SCALARS

DEPTH = 5


def mark_of(batch: Any) -> int:
    """
    Return the mark of `batch`. For a large tensor or array, only a sample of its items is used. Objects of other types
    are ignored.
    """
    mark = 0
    for part in _parts(batch, DEPTH):
        mark = zlib.crc32(part, mark)
    return mark


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        if value.is_cpu and is_dense(value):
            yield b"%d" % sampled_tensor(value.detach())
    elif isinstance(value, np.ndarray):
        if not value.dtype.hasobject:
            yield b"%d" % sampled(value)
    elif type(value) in SCALARS:
        yield repr(value).encode("utf-8", "surrogatepass")
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _parts(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item, depth - 1)
