"""
Saves and restores the plain values that a dataset of the script keeps in its attributes, such as a count of its passes.

A stream without a `state_dict` is read again after a resume, from the beginning of the pass. So a checkpoint has its
values from there: the counts in them then grow as in the interrupted training. Its random number generators are seeded
for each pass, and are left out.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from spotrun.checkpoint.slots import attributes_of, has_attributes
from spotrun.training.python_state.script import Script

DEPTH = 4
"""Maximum depth to which the attributes of a stream are searched for further objects of the script."""
PLAIN = (type(None), bool, int, float, str)
ITEMS_MAX = 10_000
"""Maximum items of a container that is saved. A longer one is taken for the stream's data, which does not change."""

Values = dict[str, Any]


def values_of(stream: object) -> Values:
    """Return a copy of each plain value, by its path: a number, a text, or a list, tuple or dict of such values."""
    return {path: copy.deepcopy(value) for path, _, _, value in _found(stream)}


def mark_of_values(values: Values) -> int:
    """Return a number that is another one if a value is another one, but for numbers that are equal by chance."""
    return zlib.crc32(repr(sorted(values.items(), key=itemgetter(0))).encode("utf-8", "surrogatepass"))


def put_back(stream: object, saved: Values) -> None:
    """Give the stream's attributes the `saved` values. Lists and dicts stay the same objects."""
    for path, holder, name, value in list(_found(stream)):
        if path not in saved:
            continue
        earlier = copy.deepcopy(saved[path])
        if type(value) is list and type(earlier) is list:
            value[:] = earlier
        elif type(value) is dict and type(earlier) is dict:
            value.clear()
            value.update(earlier)
        else:
            setattr(holder, name, earlier)


class WorkerValues:
    """
    The plain values of a dataset whose loader has persistent workers, from the time at which the workers copied it.

    The workers do not see what the training process changes later. Those of a resumed process copy the dataset again,
    so `put_back` gives it the earlier values meanwhile. `saved` is what `earlier` returned in an earlier process.
    """

    def __init__(self, loader: object) -> None:
        self._loader = loader
        self._copied: Values | None = None
        self.saved: Values = {}

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Let workers that start meanwhile copy what the first workers of the run copied."""
        if self._copied is not None:
            yield  # they have started
            return
        now = values_of(self._loader)
        self._copied = now | {path: self.saved[path] for path in self.saved.keys() & now.keys()}
        put_back(self._loader, self.saved)
        try:
            yield
        finally:
            put_back(self._loader, now)

    def earlier(self) -> Values:
        """Return the workers' values of those attributes that the training process has changed."""
        found = ((path, now) for path, _, _, now in _found(self._loader))
        copied = self._copied or {}
        return {path: copied[path] for path, now in found if path in copied and copied[path] != now}


def _found(stream: object) -> Iterator[tuple[str, object, str, Any]]:
    script, seen = Script.of_this_process(), set[int]()
    waiting = [("", getattr(stream, "dataset", stream), DEPTH)]
    while waiting:
        path, holder, left = waiting.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        if not script.owns(type(holder)):
            waiting += [(f"{path}{name}", inner, left - 1) for name, inner in _inside(holder) if left]
            continue
        for name, value in attributes_of(holder).items():
            where = f"{path}.{name}".lstrip(".")
            if _is_plain(value):
                yield where, holder, name, value
            elif left and has_attributes(type(value)):
                waiting.append((where, value, left - 1))


def _inside(wrapper: object) -> Iterator[tuple[str, object]]:
    """Yield the path and value of each dataset inside one of torch's, such as a Subset or a ConcatDataset."""
    if type(wrapper).__module__.startswith("torch.utils.data."):
        held = vars(wrapper)
        datasets = held.get("datasets")
        for number, one in enumerate(datasets if isinstance(datasets, list) else ()):
            yield f".datasets[{number}]", one
        if "dataset" in held:
            yield ".dataset", held["dataset"]


def _is_plain(value: Any) -> bool:
    left, waiting = ITEMS_MAX, [value]
    while waiting:
        each = waiting.pop()
        if type(each) in (list, tuple):
            waiting += each
        elif type(each) is dict:
            waiting += [*each, *each.values()]
        elif type(each) not in PLAIN:
            return False
        left -= 1
        if left < 0 or len(waiting) > left:
            return False
    return True
