"""
Compares an array, a tensor or a long container with its earlier content.

A small value is always compared byte by byte. For a large tensor, usually only torch's count of the writes to the
tensor is compared. Other large values are usually not compared. A comparison with `probe` also compares the bytes of
large values. It compares values completely up to WHOLE_BYTES in total, and only samples of all other values. The first
comparison of a process, and every 32nd after it, is made with `probe`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from operator import is_
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from spotrun.checkpoint.snapshot import bytes_in
from spotrun.training.python_state.arrays import Masked, MaskedArray, is_dense, memory_of
from spotrun.training.python_state.stateful_objects import GENERATORS, state_of

SMALL_ELEMENTS = 1 << 16
WHOLE_BYTES = 64 << 20
"""Maximum bytes that one probe compares whole. Comparing this amount takes a tenth of a second."""
SAMPLES, SAMPLE_BYTES = 64, 4096
PROBE_EVERY = 32

Unchanged: TypeAlias = Callable[[bool], bool]
"""
A function that returns whether a value is unchanged. Its argument `probe` says whether to compare large values too.
"""


class Budget:
    """The number of bytes that a probe may still compare completely."""

    def __init__(self) -> None:
        self._left = WHOLE_BYTES

    def take(self, size_bytes: int) -> bool:
        """
        Subtract `size_bytes` from the budget, and return True. If fewer bytes are left, return False and subtract
        nothing.
        """
        fits = size_bytes <= self._left
        self._left -= size_bytes if fits else 0
        return fits


def unchanged(value: Any, budget: Budget) -> Unchanged:
    """Record the current state of `value`, and return a function that later compares `value` with that state."""
    if isinstance(value, Tensor):
        return _tensor(value, budget)
    if isinstance(value, np.ma.MaskedArray):
        return _masked(value, budget)
    if isinstance(value, np.ndarray):
        return _array(value, budget)
    if isinstance(value, bytearray):
        before = bytes(value)
        return lambda probe: value == before
    return _generator(value) if isinstance(value, GENERATORS) else _table(value)


def _generator(generator: Any) -> Unchanged:
    before = comparable(state_of(generator))
    return lambda probe: comparable(state_of(generator)) == before


def comparable(encoded: Any) -> Any:
    """Convert `encoded` (see stateful_objects.py) so that `==` compares it bit by bit."""
    if isinstance(encoded, Tensor):
        return _bits(encoded)
    return list(map(comparable, encoded)) if isinstance(encoded, list | tuple) else encoded


def _array(array: np.ndarray[Any, Any], budget: Budget) -> Unchanged:
    shape, dtype = array.shape, array.dtype
    if dtype.hasobject:
        return lambda probe: True
    alike = _bytes_alike(array, budget)
    return lambda probe: array.shape == shape and array.dtype == dtype and alike(probe)


def _masked(array: MaskedArray, budget: Budget) -> Unchanged:
    shape, numbers, before = array.shape, _array(array.data, budget), Masked.of(array).to_bytes()
    return lambda probe: array.shape == shape and numbers(probe) and Masked.of(array).to_bytes() == before


def _bytes_alike(array: np.ndarray[Any, Any], budget: Budget) -> Unchanged:
    if array.size <= SMALL_ELEMENTS:
        copy = array.tobytes()
        return lambda probe: array.tobytes() == copy
    whole = budget.take(array.nbytes)
    checksum = _checksum_of_array(array, whole)
    return lambda probe: not probe or _checksum_of_array(array, whole) == checksum


def sampled(array: np.ndarray[Any, Any]) -> int:
    """Return a checksum of an array of any class. For a large array, the checksum covers only samples."""
    array = np.ndarray.view(array, np.ndarray)
    return _checksum_of_array(array, array.size <= SMALL_ELEMENTS)


def _checksum_of_array(array: np.ndarray[Any, Any], whole: bool) -> int:
    if not array.flags.c_contiguous:  # a copy of a large array might not fit into memory
        array = np.ascontiguousarray(array if whole else array[:: max(1, len(array) // SAMPLES)])
    flat = array.reshape(-1).view(np.uint8)
    if whole or flat.size <= SAMPLES * SAMPLE_BYTES:
        return zlib.crc32(flat.data)
    checksum = 0
    for start in range(0, flat.size, flat.size // SAMPLES):
        checksum = zlib.crc32(flat[start : start + SAMPLE_BYTES].data, checksum)
    return checksum


def _tensor(tensor: Tensor, budget: Budget) -> Unchanged:
    """
    Record a tensor's version, shape and bits to compare them later. The version alone is not sufficient: many scripts
    write averages through `.data`, which leaves the version unchanged.
    """
    if not is_dense(tensor):
        return lambda probe: True
    version, shape = _version(tensor), tensor.shape
    alike = _small_tensor(tensor) if tensor.numel() <= SMALL_ELEMENTS else _large_tensor(tensor, budget)
    return lambda probe: _version(tensor) == version and tensor.shape == shape and alike(probe)


def _small_tensor(tensor: Tensor) -> Unchanged:
    if not tensor.is_cpu:
        copy = tensor.detach().clone()
        return lambda probe: not probe or torch.equal(tensor, copy)
    bits = _bits(tensor.detach())
    if not tensor.is_contiguous():
        return lambda probe: _bits(tensor.detach()) == bits
    # Getting a view of the memory from torch takes longer than comparing the bytes. So the view is made here once, and
    # each comparison uses it.
    memory, address = memory_of(tensor.detach()), tensor.data_ptr()

    def as_before(probe: bool) -> bool:
        is_there = tensor.data_ptr() == address and tensor.is_contiguous()
        return (memory.tobytes() if is_there else _bits(tensor.detach())) == bits

    return as_before


def _large_tensor(tensor: Tensor, budget: Budget) -> Unchanged:
    whole = budget.take(tensor.nbytes)
    before = _checksum(tensor.detach(), whole)
    return lambda probe: not probe or _checksum(tensor.detach(), whole) == before


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _bits(tensor: Tensor) -> bytes:
    """Return the tensor's bytes. In a comparison of bytes, NaN equals NaN, and 0.0 differs from -0.0."""
    return memory_of(tensor.contiguous()).tobytes()


def _checksum(tensor: Tensor, whole: bool) -> int:
    if not tensor.is_contiguous():
        tensor = (tensor if whole else tensor[:: max(1, len(tensor) // SAMPLES)]).contiguous()
    flat = bytes_in(tensor)
    if flat.is_cpu:
        return _checksum_of_array(flat.numpy(), whole)
    return int((flat if whole else flat[:: max(1, flat.numel() // (SAMPLES * SAMPLE_BYTES))]).sum(dtype=torch.int64))


def sampled_tensor(tensor: Tensor) -> int:
    """Return a checksum of the tensor. For a large tensor, the checksum covers only samples."""
    return _checksum(tensor, tensor.numel() <= SMALL_ELEMENTS)


def _table(container: Any) -> Unchanged:
    before = _items(container)
    long = len(before) > SMALL_ELEMENTS

    def as_before(probe: bool) -> bool:
        if len(container) != len(before) // (2 if isinstance(container, Mapping) else 1):
            return False
        return (long and not probe) or all(map(is_, _items(container), before))

    return as_before


def _items(container: Any) -> list[Any]:
    if isinstance(container, Mapping):
        return [*container.keys(), *container.values()]
    return list(container)
