"""
Saves and loads objects that can export their own state: random number generators; the learning-rate schedulers,
optimizers and gradient scalers that a script keeps in its own objects; and values that processes share
(`multiprocessing.Value` and `Array`).

An exported state is saved as nested values. If the state contains an object that the script also uses elsewhere, the
two uses no longer share this object after a restore: the restored state contains a copy.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from spotrun.training.python_state.arrays import array_of, bytes_of, is_storable
from spotrun.training.python_state.values import Encoded, NotPlain, decode, encode, is_scalar, name_of

DEPTH_MAX = 50
_MAPPINGS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}


class _Way(NamedTuple):
    """The two functions for one class of objects: the first exports an object's state, the second loads it."""

    state: Callable[[Any], Any]
    load: Callable[[Any, Any], None]


def _set_numpy_state(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


def load_scaler(scaler: torch.amp.GradScaler, state: Any) -> None:
    """
    Load a gradient scaler's state, and create its tensors immediately.

    A scaler usually creates its tensors when it first scales a loss. After a resume, an optimizer step may need them
    earlier: if the resume is at the end of a pass, the step may use gradients from before it.
    """
    scaler.load_state_dict(state)
    scaler.scale(torch.zeros((), device=scaler._device))


_BY_NAME = _Way(lambda one: one.state_dict(), lambda one, state: one.load_state_dict(state))
_WAYS: dict[type, _Way] = {
    LRScheduler: _BY_NAME,
    Optimizer: _BY_NAME,
    torch.amp.GradScaler: _Way(lambda one: one.state_dict(), load_scaler),
    random.Random: _Way(lambda one: one.getstate(), lambda one, state: one.setstate(state)),
    np.random.RandomState: _Way(lambda one: one.get_state(legacy=False), lambda one, state: one.set_state(state)),
    np.random.Generator: _Way(lambda one: one.bit_generator.state, _set_numpy_state),
    Synchronized: _Way(lambda one: one.value, lambda one, state: setattr(one, "value", state)),
    SynchronizedArray: _Way(lambda one: list(one[:]), lambda one, state: one.__setitem__(slice(None), state)),
    torch.Generator: _Way(lambda one: one.get_state(), lambda one, state: one.set_state(state.cpu())),
}
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)
_EXACTLY = frozenset({*GENERATORS, Synchronized, SynchronizedArray})


def is_asked(cls: type) -> bool:
    return cls in _EXACTLY or issubclass(cls, LRScheduler | Optimizer | torch.amp.GradScaler)


def parts_of(asked: object) -> Iterable[tuple[str, object]]:
    """
    Return the objects that hold part of the state of `asked`. For example, an optimizer holds its scheduler's learning
    rates.
    """
    return [("optimizer", asked.optimizer)] if isinstance(asked, LRScheduler) else []


def state_of(asked: object) -> Encoded:
    """
    Return the object's exported state, encoded.

    Raises:
        NotPlain: the state contains a value that cannot be encoded, or the export failed.
    """
    try:
        state = _way(asked).state(asked)
    except Exception as error:
        raise NotPlain(f"state_dict() failed: {error}") from error
    return _encoded(state, DEPTH_MAX)


def load(asked: object, encoded: Encoded) -> None:
    _way(asked).load(asked, _decoded(encoded))


def _way(asked: object) -> _Way:
    return next(way for cls, way in _WAYS.items() if isinstance(asked, cls))


def _encoded(value: Any, depth: int) -> Encoded:
    if not depth:
        raise NotPlain("it is nested too deep")
    if isinstance(value, Tensor | np.ndarray):
        if not is_storable(value):
            raise NotPlain(f"it holds a {name_of(value)} of {value.dtype}")
        if isinstance(value, Tensor):
            return ("tensor", value.detach(), str(value.device))
        return ("array", bytes_of(value), value.dtype.str, tuple(value.shape))
    if isinstance(value, Mapping):
        kind = next((name for name, cls in _MAPPINGS.items() if type(value) is cls), "dict")
        return (kind, [_encoded(part, depth - 1) for pair in value.items() for part in pair])
    if type(value) is deque:
        return ("deque", [_encoded(part, depth - 1) for part in value], value.maxlen)
    if isinstance(value, list | deque):
        return ("list", [_encoded(part, depth - 1) for part in value])
    if type(value) is set:
        return ("set", [_encoded(part, depth - 1) for part in value])
    if type(value) is tuple and not is_scalar(value):
        return ("items", [_encoded(part, depth - 1) for part in value])
    if not is_scalar(value):
        raise NotPlain(f"it holds a {name_of(value)}")
    return encode(value)


def _decoded(encoded: Encoded) -> Any:
    if type(encoded) is not tuple:
        return encoded
    kind, *content = encoded
    match kind:
        case "tensor":
            return content[0].to(content[1], copy=True)
        case "array":
            return array_of(*content)
        case "dict" | "OrderedDict" | "Counter":
            parts = list(map(_decoded, content[0]))
            return _MAPPINGS[kind](dict(zip(parts[::2], parts[1::2], strict=True)))
        case "deque":
            return deque(map(_decoded, content[0]), content[1])
        case "list" | "items" | "set":
            return {"list": list, "items": tuple, "set": set}[kind](map(_decoded, content[0]))
    return decode(encoded)
