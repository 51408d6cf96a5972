"""
Detects whether an object has changed, without calling the object's code. This is used for objects that checkpoints do
not contain.

The module compares facts about the object, which depend on its kind:
- an iterator: its position
- an object that is partly outside the process, such as a file: its position, CPU time or traffic (outside.py)
- an object of a library: the numbers, arrays and further objects in its attributes. Private attributes, dicts and
  strings are mostly caches. They are ignored unless they contain a random number generator, connection or process.
"""

from __future__ import annotations

import array
import ctypes
import functools
import gc
import itertools
import operator
import weakref
import zlib
from collections import deque
from collections.abc import Container, Iterator
from contextvars import ContextVar
from queue import SimpleQueue
from types import FunctionType, GeneratorType, ModuleType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np
import torch

from spotrun.checkpoint.slots import attributes_of
from spotrun.training.python_state.fingerprints import comparable, sampled
from spotrun.training.python_state.kept_iterator import KeptIterator
from spotrun.training.python_state.outside import is_outside, seen_of
from spotrun.training.python_state.stateful_objects import GENERATORS, is_asked, state_of
from spotrun.training.python_state.values import SCALARS

OBJECTS_MAX = 300
"""Maximum parts of one object that are inspected."""
DEPTH = 6
LONG = 64
"""Maximum length of a library's list that is inspected. A longer list is considered data."""
BUFFER_MAX_BYTES = 1 << 20
_SOURCES: tuple[Any, ...] = ([], (), {}, set(), "", range(0), {}.items(), reversed([]))
_ITERATORS = tuple({type(iter(source)) for source in _SOURCES})
_NEVER = (type, ModuleType, FunctionType, torch.Tensor, torch.nn.Module, torch.utils.data.DataLoader)
_BUFFERS = (array.array, ctypes.Array, ctypes.Structure, *ctypes.c_int.__bases__)
_NUMBERS = frozenset({int, float, complex}) | {cls for cls in SCALARS if issubclass(cls, np.number)}
_LISTS = (list, tuple, deque)
CACHE = type(functools.lru_cache(len))

Facts: TypeAlias = tuple[Any, ...]
"""The facts about one object: values that `values.same` can compare with earlier ones."""


class Inspector:
    """
    Collects facts about objects. Three groups of objects are left out: objects whose `id`s are in `carried`, because
    snapshots contain them; objects of the packages `harmless` (see HARMLESS); and files that are open for writing below
    the folder `work`, because checkpoints include these files.
    """

    def __init__(self, carried: Container[int], harmless: tuple[str, ...], work: str) -> None:
        self._carried = carried
        self._harmless = harmless
        self._work = work

    def is_of_use(self, value: object) -> bool:
        """Return True if inspecting `value` might find state on which a step depends."""
        cls = type(value)
        return cls is KeptIterator or not (issubclass(cls, _NEVER) or f"{cls.__module__}.".startswith(self._harmless))

    def facts(self, value: object, depth: int = DEPTH) -> Facts:
        """
        Return the facts about an object. If they differ from earlier facts, the object has changed. The result is empty
        if nothing about the object can be compared.
        """
        found: list[Any] = [*_public(value), *_weakly_held(value), *_kept_results(value)]
        seen = {id(value)}
        waiting = deque([(value, depth)])
        while waiting:
            one, left = waiting.popleft()
            found += self._facts_of(one)
            if not left or is_outside(type(one)):
                continue
            for name, part in _parts(one):
                if type(part) in _NUMBERS:
                    found.append((name, part))
                elif id(part) not in seen and len(seen) < OBJECTS_MAX and self._goes_into(part):
                    seen.add(id(part))
                    waiting.append((part, left - 1))
        return tuple(found)

    def _goes_into(self, part: object) -> bool:
        cls = type(part)
        kept = cls in SCALARS or id(part) in self._carried or (is_asked(cls) and cls not in GENERATORS)
        return not kept and self.is_of_use(part)

    def _facts_of(self, value: Any) -> list[Any]:
        """Return the facts about `value`, without those about its parts."""
        cls = type(value)
        if is_outside(cls):
            seen = seen_of(value, self._work)
            return [] if seen is None else [seen]
        if cls is GeneratorType:
            return [_frame(value)]
        if cls in _ITERATORS:
            return [operator.length_hint(value)]
        if cls is itertools.count:
            return [repr(value)]
        if cls is SimpleQueue:
            return [value.qsize()]
        if cls is ContextVar:
            return [now] if type(now := value.get(None)) in SCALARS else []
        if cls in GENERATORS:
            return [repr(comparable(state_of(value)))]
        if issubclass(cls, np.ndarray):
            return [(*value.shape, sampled(value))] if value.flags.writeable and not value.dtype.hasobject else []
        return [_checksum(value)] if issubclass(cls, _BUFFERS) else []


def _public(value: Any) -> list[Any]:
    """Return the public plain attributes of the object, including strings and flags."""
    cls = type(value)
    if not cls.__dictoffset__ or _is_shadowed(cls):
        return []
    return [(name, part) for name, part in list(vars(value).items()) if type(part) in SCALARS and name[:1] != "_"]


def _weakly_held(value: Any) -> list[Any]:
    """
    Return the number and the `id`s of the objects to which `value` has weak references. The objects themselves are not
    returned, because that would keep them alive.
    """
    cls = type(value)
    if issubclass(cls, weakref.ref):
        return [value() is None]
    if not issubclass(cls, WeakKeyDictionary | WeakValueDictionary | WeakSet):
        return []
    held = sorted(map(id, value)) if issubclass(cls, WeakSet) else list(value.items())
    return [len(held), *(each if isinstance(each, int) else tuple(map(_or_id, each)) for each in held)]


def _or_id(value: Any) -> Any:
    return value if type(value) in SCALARS else id(value)


def _kept_results(value: Any) -> list[Any]:
    """
    Return the number of results that a function's cache (`lru_cache`) has stored, as a list; [] for any other value.
    The results themselves cannot be read, and a resume cannot restore them.
    """
    return [value.cache_info().misses] if type(value) is CACHE else []


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    cls = type(value)
    goes_on = hasattr(cls, "__next__")
    if goes_on and not cls.__dictoffset__:
        referred = gc.get_referents(value)
        yield from (("", part) for part in referred if hasattr(type(part), "__next__") or type(part) in _LISTS)
    elif cls in _LISTS:
        yield from (("", part) for part in (value if len(value) <= LONG else ()))
    elif not _is_shadowed(cls):
        for name, part in attributes_of(value).items():
            if name[:1] != "_" or (goes_on and type(part) in _NUMBERS) or _counts_anyway(type(part)):
                yield name, part


def _counts_anyway(cls: type) -> bool:
    return cls in GENERATORS or is_outside(cls) or hasattr(cls, "__next__")


def _is_shadowed(cls: type) -> bool:
    """
    Return True if instances of `cls` are proxies for other objects. Reading a proxy's attributes could create the
    object behind it.
    """
    return any(isinstance(vars(base).get("__dict__"), property) for base in cls.__mro__)


def _frame(generator: GeneratorType[Any, Any, Any]) -> tuple[Any, ...]:
    """Return the position of a generator, and its plain variables."""
    frame = generator.gi_frame
    if frame is None:
        return ()
    own = [(name, part) for name, part in frame.f_locals.items() if type(part) in SCALARS]
    return (frame.f_lasti, *itertools.chain.from_iterable(own))


def _checksum(buffer: Any) -> int:
    view = memoryview(buffer)
    return zlib.crc32(view.tobytes()) if view.nbytes <= BUFFER_MAX_BYTES else view.nbytes
