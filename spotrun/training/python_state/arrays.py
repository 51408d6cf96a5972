"""Which tensors and arrays an image can hold, and arrays as it holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spotrun.checkpoint.layout import ITEM_BYTES

Array = np.ndarray[Any, Any]


def is_storable(value: Tensor | Array) -> bool:
    if isinstance(value, Tensor):
        return is_dense(value) and str(value.dtype).removeprefix("torch.") in ITEM_BYTES
    return not value.dtype.hasobject and np.dtype(value.dtype.str) == value.dtype


def is_dense(tensor: Tensor) -> bool:
    other = tensor.is_quantized or tensor.is_nested or tensor.is_meta or tensor.is_conj() or tensor.is_neg()
    return tensor.layout is torch.strided and not other


def memory_of(tensor: Tensor) -> Array:
    """The bytes of a dense tensor on the CPU, not a copy. They are its own as long as its `data_ptr` is the same."""
    return tensor.view(-1).view(torch.uint8).numpy()


def bytes_of(array: Array) -> Tensor:
    """The memory of the array itself, if it lies in one piece and may be written to."""
    if not array.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return torch.from_numpy(flat if flat.flags.writeable else flat.copy())


def array_of(data: Tensor, dtype: str, shape: tuple[int, ...]) -> Array:
    """A new array of what `bytes_of` gave."""
    return np.frombuffer(data.numpy().tobytes(), dtype=np.dtype(dtype)).reshape(shape).copy()
