"""
Saves and restores the plain values that a stream of the script keeps in its attributes, such as a count of its passes.

A stream without a `state_dict` is read again after a resume, from the beginning of the pass. So a checkpoint has its
values from there: the counts in them then grow as in the interrupted training. Its random number generators are seeded
for each pass, and are left out.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator
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
        if path not in saved or type(value) is not type(saved[path]):
            continue
        if type(value) is list:
            value[:] = copy.deepcopy(saved[path])
        elif type(value) is dict:
            value.clear()
            value.update(copy.deepcopy(saved[path]))
        else:
            setattr(holder, name, saved[path])


def _found(stream: object) -> Iterator[tuple[str, object, str, Any]]:
    script, seen = Script.of_this_process(), set[int]()
    waiting = [("", getattr(stream, "dataset", stream), DEPTH)]
    while waiting:
        path, holder, left = waiting.pop()
        if id(holder) in seen or not script.owns(type(holder)):
            continue
        seen.add(id(holder))
        for name, value in attributes_of(holder).items():
            where = f"{path}.{name}".lstrip(".")
            if _is_plain(value):
                yield where, holder, name, value
            elif left and has_attributes(type(value)):
                waiting.append((where, value, left - 1))


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
