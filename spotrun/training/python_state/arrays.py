"""
Checks whether a checkpoint can contain a tensor or an array. Converts arrays to the form in which checkpoints store
them, and back.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from spotrun.checkpoint.layout import ITEM_BYTES
from spotrun.checkpoint.snapshot import bytes_in

Array = np.ndarray[Any, Any]
MaskedArray: TypeAlias = "np.ma.MaskedArray[Any, Any]"


def is_storable(value: Tensor | Array) -> bool:
    if isinstance(value, Tensor):
        return is_dense(value) and str(value.dtype).removeprefix("torch.") in ITEM_BYTES
    return not value.dtype.hasobject and np.dtype(value.dtype.str) == value.dtype


def is_dense(tensor: Tensor) -> bool:
    other = tensor.is_quantized or tensor.is_nested or tensor.is_meta or tensor.is_conj() or tensor.is_neg()
    return tensor.layout is torch.strided and not other


def memory_of(tensor: Tensor) -> Array:
    """Return a view of a dense CPU tensor's bytes. It is valid while the tensor's `data_ptr` stays the same."""
    return bytes_in(tensor).numpy()


def bytes_of(array: Array) -> Tensor:
    """Return the array's memory as a tensor. Return a copy if the array is not contiguous or not writable."""
    if not array.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return torch.from_numpy(flat if flat.flags.writeable else flat.copy())


class Masked(NamedTuple):
    """The parts of a masked array other than its numbers: the mask, if any, and the fill value for masked numbers."""

    mask: Array | None
    fill_value: Array
    is_hard: bool

    @classmethod
    def of(cls, array: MaskedArray) -> Masked:
        mask = None if array.mask is np.ma.nomask else np.asarray(array.mask)
        return cls(mask, np.array(array.fill_value, array.dtype), bool(array.hardmask))

    def to_bytes(self) -> tuple[bytes | None, bytes, bool]:
        return None if self.mask is None else self.mask.tobytes(), self.fill_value.tobytes(), self.is_hard

    def put_on(self, array: MaskedArray, data: Array) -> None:
        """Set the numbers of `array` to `data`. Set its mask, fill value and hardness from this object."""
        array.soften_mask()
        array.mask = np.ma.nomask  # a masked number can only be set while the array has no mask
        array.data[...] = data
        if self.mask is not None:
            array.mask = self.mask
        fill_value: Any = self.fill_value[()]
        array.fill_value = fill_value
        if self.is_hard:
            array.harden_mask()


def content_of_masked(array: MaskedArray) -> tuple[Any, ...]:
    """Return the content of a masked array in the form in which checkpoints contain it."""
    mask, fill_value, is_hard = Masked.of(array)
    masked = None if mask is None else bytes_of(mask)
    return bytes_of(array.data), array.dtype.str, tuple(array.shape), masked, bytes_of(fill_value), is_hard


def new_masked(data: Tensor, dtype: str, shape: tuple[int, ...]) -> MaskedArray:
    """Return a new masked array. `fill_masked` adds its mask."""
    return np.ma.masked_array(array_of(data, dtype, shape))


def fill_masked(array: MaskedArray, content: tuple[Any, ...]) -> None:
    """Fill `array` with content that `content_of_masked` returned."""
    data, dtype, shape, mask, fill_value, is_hard = content
    own_mask = None if mask is None else array_of(mask, "|b1", shape)
    Masked(own_mask, array_of(fill_value, dtype, ()), is_hard).put_on(array, array_of(data, dtype, shape))


def array_of(data: Tensor, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return a new array with the bytes `data`, which `bytes_of` returned."""
    return np.frombuffer(data.numpy().tobytes(), dtype=np.dtype(dtype)).reshape(shape).copy()


def packed_numbers(values: list[Any], minimum: int) -> Array | None:
    """
    Return the numbers of a list as an array if all are floats, or all are ints that fit into 64 bits; otherwise return
    None. Also return None for a list of fewer than `minimum` items.
    """
    if len(values) < minimum:
        return None
    kinds = set(map(type, values))
    try:
        if kinds == {float}:
            return np.array(values, np.float64)
        if kinds == {int}:
            return np.array(values, np.int64)
    except OverflowError:
        pass
    return None
