"""
Recreates objects from their descriptions in a checkpoint.

Importing or calling what a checkpoint names would let a checkpoint execute any code. So objects are found or created
only in these ways:

- If the script already has an object at the same path, that object gets the saved state, through its `load_state_dict`
  if it has one.
- An enum member is found by its name.
- A named tuple is created as a tuple.
- An instance of one of the script's classes is created without calling `__init__`, and its attributes are set. The
  class must exist already, must not belong to an installed package, and must not define how instances are created or
  freed.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections import deque
from enum import EnumMeta
from types import FunctionType, SimpleNamespace
from typing import Any, NoReturn

from spotrun.checkpoint import objects
from spotrun.checkpoint.objects import ASKED, MEMBER, OBJECT, STANDS, TUPLE, SavedObject
from spotrun.checkpoint.slots import attributes_of, set_attributes
from spotrun.errors import SpotrunError

_NOBODY = object()


class NotRevived(SpotrunError):
    """Raised if the script has no class or object for a saved object, because the script was changed."""


def revived(value: Any, standing: Any = _NOBODY) -> Any:
    """
    Return `value` with each `SavedObject` in it replaced by an object. If it contains no `SavedObject`, return `value`
    itself.

    `standing` is the script's current value at the same path. If an object in it fits a `SavedObject`, it gets the
    saved state, and becomes part of the result. Some kinds of `SavedObject` can be restored only into an existing
    object. Without `standing`, these stay in the result as they are.

    Raises:
        NotRevived: the script no longer has such a class or object.
    """
    if isinstance(value, SavedObject):
        return _object(value, standing)
    if isinstance(value, dict):
        return _mapping(value, standing)
    if type(value) in (list, tuple, set, frozenset, deque):
        items = [revived(item, _at(standing, n)) for n, item in enumerate(value)]
        if all(map(_is, items, value)):
            return value
        return deque(items, value.maxlen) if isinstance(value, deque) else type(value)(items)
    if type(value) in (Namespace, SimpleNamespace):
        value.__dict__.update(_mapping(vars(value), standing))
    return value


def _is(one: object, other: object) -> bool:
    return one is other


def _mapping(value: dict[Any, Any], standing: Any) -> dict[Any, Any]:
    keys = [revived(key) for key in value]
    items = [revived(item, _at(standing, key)) for key, item in value.items()]
    if all(map(_is, keys, value)) and all(map(_is, items, value.values())):
        return value
    made = copy.copy(value)
    made.clear()
    made.update(zip(keys, items, strict=True))
    return made


def _at(standing: Any, key: Any) -> Any:
    if isinstance(standing, dict):
        return standing.get(key, _NOBODY)
    if isinstance(standing, list | tuple | deque) and type(key) is int and 0 <= key < len(standing):
        return standing[key]
    return _NOBODY


def _object(held: SavedObject, standing: Any) -> Any:
    content = held["content"]
    if held.kind == MEMBER:
        return _member(held)
    if held.kind == TUPLE:
        kind = objects.class_named(held.name)
        if kind is None or not objects.is_named_tuple(kind):
            _gone(held)
        return tuple.__new__(kind, revived(content, standing))
    if held.kind == OBJECT:
        return _instance(held, standing)
    if standing is _NOBODY:
        return held
    if held.kind == STANDS and held.name in (_name(standing), objects.name_of(type(standing))):
        return standing
    if held.kind == ASKED and objects.name_of(type(standing)) == held.name:
        standing.load_state_dict(revived(content, standing.state_dict()))
        return standing
    return _gone(held)


def _name(standing: Any) -> str:
    return objects.name_of(standing) if isinstance(standing, type | FunctionType) else ""


def _member(held: SavedObject) -> Any:
    kind = objects.class_named(held.name)
    if not isinstance(kind, EnumMeta) or held["content"] not in kind.__members__:
        _gone(held)
    return kind.__members__[held["content"]]


def _instance(held: SavedObject, standing: Any) -> Any:
    stands = objects.name_of(type(standing)) == held.name
    kind = type(standing) if stands else objects.class_named(held.name)
    if kind is None or not (objects.is_plain(kind) and objects.is_of_script(kind)):
        _gone(held)
    filled = standing if stands else object.__new__(kind)
    set_attributes(filled, revived(held["content"], attributes_of(standing) if stands else _NOBODY), gone=())
    return filled


def _gone(held: SavedObject) -> NoReturn:
    raise NotRevived(
        f"the checkpoint holds a {held.name.replace(':', '.')}, which this script no longer has in the same place",
        hint="train with the script that made the checkpoint; it has to import the module before fit()",
    )
