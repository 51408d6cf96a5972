"""
Detects changes that a data loader's worker processes make to the script's dataset. Such changes would be lost at a
resume.

A worker has its own copy of the dataset, and can change only that copy. Checkpoints are made in the training process,
so they do not include such changes. After a resume, each new worker starts with a copy of the training process's
dataset.

At intervals, each worker checks whether its dataset has changed since the previous check. It reports changes in shared
memory, which the training process reads at each snapshot.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spotrun.checkpoint.slots import attributes_of, has_attributes
from spotrun.training.data.proxy import Proxy
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.python_state.fingerprints import sampled
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.stateful_objects import GENERATORS
from spotrun.training.python_state.values import SCALARS, name_of, same

ROW_BYTES = 4096
PLACES_MAX, PLACE_MAX = 10, 200
"""
Maximum number of changed attributes that a worker reports, and maximum characters of an attribute's path. If the paths
do not fit into a row, some are left out. At least one path always fits.
"""
LOOK_EVERY = 1024
"""Number of batches between two comparisons. Early in training, a worker compares after batches 1, 2, 4, 8, …"""
OBJECTS_MAX = 1000
DEPTH = 5
LONG = 64
"""
Maximum number of items that a container may have for its items to be compared. Of a longer container only the length is
compared: reading an item in a forked worker makes the operating system copy the item's memory page.
"""
KEPT_THERE = "kept in a worker of its loader"
OTHER = "an object of a library"
_CONTAINERS = (list, tuple, deque, set, frozenset, dict)
_NEVER = (type, ModuleType, FunctionType, Tensor, torch.nn.Module, np.ndarray)


class Notes:
    """
    Shared memory in which the workers of one loader report changes. Each worker has one row. `why` says why a resume
    would lose these changes.
    """

    def __init__(self, workers: int, why: str = KEPT_THERE) -> None:
        self._why = why
        self._rows = torch.zeros(workers, ROW_BYTES, dtype=torch.uint8)
        self._rows.share_memory_()  # type: ignore[no-untyped-call]

    def write(self, worker: int, places: list[str]) -> None:
        """Write the row of `worker`. Its length is written last, so that a reader never reads half a row."""
        row, text = self._rows[worker], _text(places)
        while len(text) > ROW_BYTES - 2:
            places = places[: len(places) // 2]
            text = _text(places)
        row[:2] = 0
        row[2 : 2 + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        row[:2] = torch.tensor(divmod(len(text), 256), dtype=torch.uint8)

    def read(self) -> Iterator[UntrackedChange]:
        for row in self._rows:
            high, low = row[:2].tolist()
            if size := high * 256 + low:
                try:
                    places = json.loads(bytes(row[2 : 2 + size].tolist()))
                except ValueError:
                    continue  # a worker is writing this row; the next call reads it
                yield from (UntrackedChange(place, self._why) for place in places)


def _text(places: list[str]) -> bytes:
    return json.dumps([place[:PLACE_MAX] for place in places]).encode()


class Watch:
    """
    Finds changes to one worker's dataset. This object is created in the training process, but used only in the worker.
    (A stream's collate function is watched in the training process; see `ExactLoader.state`.)
    """

    def __init__(self, dataset: Any, notes: Notes) -> None:
        self.notes = notes
        self._dataset = dataset
        self._batches = 0
        self._before: dict[str, Any] | None = None
        self._named: dict[str, None] = {}
        self._script: Script | None = None

    def batch_is_read(self, worker: int) -> None:
        self._batches += 1
        if self._batches & (self._batches - 1) == 0 or self._batches % LOOK_EVERY == 0:
            self.look(worker)

    def look(self, worker: int) -> None:
        """
        Compare the dataset's facts (`_facts`) with those that the previous call recorded. The first call only records
        them.
        """
        self._script = self._script or Script.of_this_process()
        now = dict(_facts(self._script, type(self._dataset).__name__, self._dataset))
        if self._before is not None:
            self._note(worker, self._before, now)
        self._before = now

    def _note(self, worker: int, before: dict[str, Any], now: dict[str, Any]) -> None:
        known = len(self._named)
        for place in sorted(before.keys() | now.keys(), key=len):
            if _has_changed(before.get(place), now.get(place)) and not self._is_named(place):
                self._named[place] = None
        if len(self._named) > known:
            self.notes.write(worker, list(self._named)[:PLACES_MAX])

    def _is_named(self, place: str) -> bool:
        return any(place == named or place.startswith((f"{named}.", f"{named}[")) for named in self._named)


def _has_changed(before: Any, now: Any) -> bool:
    """
    Return True if an attribute has changed from `before` to `now`. A change from None to a library's object, such as an
    open file, does not count, because each worker creates such an object when it needs it.
    """
    opened = before is None and type(now) is tuple and now[0] is OTHER
    return not opened and not same(before, now)


def _facts(script: Script, path: str, dataset: Any) -> Iterator[tuple[str, Any]]:
    """
    Yield a path and a fact (`_fact`) for each attribute of the dataset and of the script's own objects in it. If an
    attribute changes, its fact changes. Random number generators are left out: they are seeded again for each sample,
    so a change to their state does not matter.
    """
    waiting = deque([(path, dataset, DEPTH, script.owns(type(dataset)))])
    seen: set[int] = set()
    while waiting:
        where, value, left, own = waiting.popleft()
        if id(value) in seen or len(seen) >= OBJECTS_MAX:
            continue
        seen.add(id(value))
        for name, part in _parts(value):
            cls = type(part)
            if own and cls not in GENERATORS:
                yield f"{where}{name}", _fact(part)
            if left and (issubclass(cls, _CONTAINERS) or (has_attributes(cls) and not issubclass(cls, _NEVER))):
                owned = script.owns(cls)
                inner = cls.__name__ if owned and not own else f"{where}{name}"
                waiting.append((inner, part, left - 1, owned or (own and issubclass(cls, _CONTAINERS))))


def _parts(value: Any) -> list[tuple[str, Any]]:
    cls = type(value)
    if issubclass(cls, dict):
        return [(f"[{key!r}]", part) for key, part in dict.items(value)] if len(value) <= LONG else []
    if issubclass(cls, list | tuple | deque):
        return [(f"[{number}]", part) for number, part in enumerate(value)] if len(value) <= LONG else []
    return [(f".{name}", part) for name, part in attributes_of(value).items()]


def _fact(value: Any) -> Any:
    """
    Return a small value that changes when `value` changes, such as a container's length. `values.same` compares such
    facts.
    """
    cls = type(value)
    if cls in SCALARS:
        return value
    if issubclass(cls, _CONTAINERS):
        return (cls.__name__, len(value))
    if issubclass(cls, Tensor):
        return 0 if value.is_inference() else value._version
    if issubclass(cls, np.ndarray) and not value.dtype.hasobject:
        return (*value.shape, sampled(value))
    return (OTHER, name_of(value))


def notes_of(loader: Any) -> Notes | None:
    dataset = getattr(loader, "dataset", None)
    watch = vars(dataset).get("_watch") if issubclass(type(dataset), Proxy) else None
    return None if watch is None else watch.notes
