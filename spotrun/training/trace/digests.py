"""
Computes digests of tensors, arrays and plain values for a trace. Equal values have equal digests in every process.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spotrun.checkpoint.accelerator import generator_states
from spotrun.checkpoint.snapshot import bytes_in
from spotrun.exactness.same_everywhere import without_instances
from spotrun.exactness.trace_file import INSTANCES_VARIABLE

clean = without_instances(os.environ.get(INSTANCES_VARIABLE, ""))
"""
A function that makes texts from different instances comparable: it replaces the parts that are different on each
instance, such as the path of the instance's folder.
"""
_LONG = 100
"""
Minimum length of a list of integers that gets one digest for the whole list. (The state of Python's generator has 625
integers.)
"""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
SHOWN_MAX = 80
"""Maximum length of a value's text that is shown. A longer text is replaced by a digest."""


def generators() -> dict[str, Any]:
    """Return the state of every random number generator that spotrun seeds."""
    host = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    return host | generator_states()


def digest(value: Any) -> str:
    """Return one sha256 over all bits of a tree of tensors, arrays and plain values."""
    total = sha256()
    for path, leaf in _leaves(value):
        total.update(f"{path} {digest_of_leaf(leaf)}\n".encode(errors="surrogatepass"))
    return total.hexdigest()


def digests(value: Any) -> dict[str, str]:
    """Return the sha256 of each leaf of a tree, by the leaf's path."""
    return {clean(path): digest_of_leaf(leaf) for path, leaf in _leaves(value)}


def metrics(values: Mapping[str, Any]) -> dict[str, str]:
    """Return numbers in hexadecimal, by name. A value that is not a single number is replaced by its digest."""
    return {name: _number(value) for name, value in sorted(values.items())}


def _number(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach()).hex()
    return float(value).hex() if isinstance(value, int | float) else digest(value)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value) if len(value) < _LONG or not all(type(item) is int for item in value) else None
    else:
        items = None
    if items is None:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def digest_of_leaf(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return _digest_of_tensor(leaf.detach())
    if isinstance(leaf, np.ndarray):
        content = repr(leaf.tolist()).encode() if leaf.dtype.hasobject else leaf.tobytes()
        return sha256(f"{leaf.dtype} {leaf.shape} ".encode() + content).hexdigest()
    return sha256(stable(leaf).encode(errors="surrogatepass")).hexdigest()


def _digest_of_tensor(tensor: Tensor) -> str:
    kind = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    if tensor.is_meta:
        return sha256(kind + b"without data").hexdigest()
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    data = (dense.dequantize() if dense.is_quantized else dense).cpu().resolve_conj().resolve_neg().contiguous()
    return sha256(kind + bytes_in(data).numpy().tobytes()).hexdigest()


def stable(leaf: Any) -> str:
    """Return a text for `leaf` that is the same in every process: without memory addresses, and with sorted sets."""
    if isinstance(leaf, float):
        return leaf.hex()
    if isinstance(leaf, set | frozenset):
        return str(sorted(map(stable, leaf)))
    return clean(_ADDRESS.sub("", repr(leaf)))


def shown(leaf: Any) -> str:
    """Return a plain value's text if the text is short; otherwise return its digest."""
    text = stable(leaf)
    return text if len(text) <= SHOWN_MAX else f"sha256 {sha256(text.encode(errors='surrogatepass')).hexdigest()}"
