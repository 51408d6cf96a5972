"""
Objects that are in no checkpoint and change without a sign in the script's own objects: an iterator that goes on, an
open file, an environment of a library.

Each is compared by the little that can be read of it without a call of its code, so one that changes in silence stays
unnamed.
"""

from __future__ import annotations

import io
import itertools
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import torch

from spotrun.training.python_state.values import SCALARS, name_of, same

_SOURCES: tuple[Any, ...] = ([], (), {}, set(), "", range(0), {}.items(), reversed([]))
_ITERATORS = tuple({type(iter(source)) for source in _SOURCES})
_NEVER = (type, ModuleType, FunctionType, torch.Tensor, torch.nn.Module, torch.utils.data.DataLoader)

Look = Callable[[], Any]
"""Gives something that is another once the object has changed."""


class Unseen:
    """Those that were there when training began."""

    def __init__(self, others: Iterable[tuple[str, str, object]], harmless: tuple[str, ...]) -> None:
        self._looks: list[tuple[str, object, Look, Any]] = []
        for path, rest, value in others:
            if not type(value).__module__.startswith(harmless) and (look := _look(value)) is not None:
                self._looks.append((path + rest, value, look, look()))

    def changed(self) -> Iterator[tuple[str, str]]:
        """Where, and what it is; each once."""
        left = []
        for path, value, look, before in self._looks:
            if same(before, look()):
                left.append((path, value, look, before))
            else:
                yield path, name_of(value)
        self._looks = left


def _look(value: Any) -> Look | None:
    cls = type(value)
    if issubclass(cls, _NEVER):
        return None
    if cls is GeneratorType:
        return lambda: _frame(value)
    if cls in _ITERATORS:
        return lambda: operator.length_hint(value)
    if cls is itertools.count:
        return lambda: repr(value)
    if issubclass(cls, io.IOBase):
        return lambda: _position(value)
    return (lambda: _plain(value)) if cls.__dictoffset__ and "__dict__" not in _shadowed(cls) else None


def _shadowed(cls: type) -> set[str]:
    """Names that a proxy answers for another object, which may not be there yet."""
    return {name for base in cls.__mro__ for name, member in vars(base).items() if isinstance(member, property)}


def _frame(generator: GeneratorType[Any, Any, Any]) -> tuple[Any, ...]:
    """Where it stands, and its plain variables."""
    frame = generator.gi_frame
    if frame is None:
        return ()
    own = [(name, part) for name, part in frame.f_locals.items() if type(part) in SCALARS]
    return (frame.f_lasti, *itertools.chain.from_iterable(own))


def _position(file: io.IOBase) -> int | None:
    """None if it is closed, or no file of a disk."""
    try:
        return os.lseek(file.fileno(), 0, os.SEEK_CUR)
    except (OSError, ValueError):
        return None


def _plain(value: Any) -> tuple[Any, ...]:
    """Of a library's object: its public plain attributes."""
    own = [(name, part) for name, part in list(vars(value).items()) if type(part) in SCALARS and name[:1] != "_"]
    return tuple(itertools.chain.from_iterable(own))
