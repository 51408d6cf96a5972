"""
Represents Python objects in a saved state as plain values. Saving a state turns each of its objects into a
`SavedObject`. Only a training that resumes turns the SavedObjects into objects again.

An image names the class of each object, but code that reads an image does not look up, import or call these classes.
spotrun/training/revival.py decides which classes a resuming training accepts.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from spotrun.checkpoint.plain_kinds import Unnamed
from spotrun.checkpoint.slots import attributes_of

Path: TypeAlias = tuple[object, ...]

MEMBER, TUPLE, OBJECT, ASKED, STANDS = "member", "namedtuple", "object", "asked", "stands"
HELD = frozenset({MEMBER, TUPLE, OBJECT, ASKED, STANDS})
"""
The kinds of a `SavedObject`:
- MEMBER: an enum member
- TUPLE: a named tuple
- OBJECT: an instance of a plain class (see `is_plain`)
- ASKED: an object whose `state_dict()` is saved and passed to `load_state_dict` at a resume
- STANDS: a function, a class, or an object that is saved elsewhere. Only its name is saved, because each process of the
  script itself creates such an object at the same place in the state.
"""
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, partial)


class SavedObject(dict[str, Any]):
    """A saved object. `name` names its class. The item "content" holds the object's attributes or its state."""

    def __init__(self, kind: str, name: str, content: Any) -> None:
        super().__init__(content=content)
        self.kind, self.name = kind, name

    def __hash__(self) -> int:  # type: ignore[override]
        """Return a hash of the object's identity, because a dict has no hash of its own."""
        return id(self)


class InitialObjects:
    """
    The objects that were already in the state when training began. When a training resumes, the script creates them
    again at the same paths. So for some of them, an image needs to contain only a name.

    Only objects under the top-level keys `below` are recorded. `is_elsewhere` returns True for an object whose state is
    saved separately.
    """

    def __init__(self, below: Collection[str], is_elsewhere: Callable[[Any], bool]) -> None:
        self._below = frozenset(below)
        self.is_elsewhere = is_elsewhere
        self._first: dict[Path, Any] | None = None
        self._found: dict[Path, Any] = {}

    def covers(self, path: Path) -> bool:
        return bool(path) and path[0] in self._below

    def is_same(self, path: Path, value: Any) -> bool:
        """
        Return True if `value` is the object that was at `path` when the state was saved for the first time. During that
        first save, which lasts until `first_look_ends` is called, record `value` and return True.
        """
        if self._first is None:
            self._found[path] = value
            return True
        first = self._first.get(path)
        return first is value or (isinstance(value, types.MethodType) and first == value)

    def first_look_ends(self) -> None:
        if self._first is None:
            self._first = self._found


def parts_of(value: Any, path: Path, standing: InitialObjects | None) -> tuple[str, str, Any] | None:
    """
    Return the kind, the name and the content of an object. Return None if an image cannot hold objects of this type.

    Raises:
        Unnamed: an image can hold objects of this type, but not this object, because its class cannot be found by its
            name, or because it was put into the state after training began.
    """
    kind = type(value)
    if isinstance(value, Enum):
        return MEMBER, _name_to_find(kind, value.name in kind.__members__), value.name
    if is_named_tuple(kind):
        return TUPLE, _name_to_find(kind), list(value)
    if standing is not None and standing.covers(path) and (parts := _standing_parts(value, path, standing)):
        return parts
    if is_plain(kind) and is_of_script(kind):
        return OBJECT, _name_to_find(kind), attributes_of(value)
    return None


def _standing_parts(value: Any, path: Path, standing: InitialObjects) -> tuple[str, str, Any] | None:
    kind = type(value)
    is_code = isinstance(value, _CODE) or standing.is_elsewhere(value)
    if not is_code and not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
        return None
    if not standing.is_same(path, value):
        raise Unnamed(f"a {described(kind)} that was added there after training began")
    if is_code:
        return STANDS, name_of(value if isinstance(value, type | types.FunctionType) else kind), None
    return ASKED, name_of(kind), value.state_dict()


def _name_to_find(kind: type, has_value: bool = True) -> str:
    if not (has_value and is_found(kind)):
        raise Unnamed(f"a {described(kind)}, which its module does not have under that name")
    return name_of(kind)


def name_of(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def described(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def class_named(name: str) -> type | None:
    """Return the class with this name; None if its module has not been imported, or has no such class."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    return found if isinstance(found, type) else None


def is_found(kind: type) -> bool:
    return class_named(name_of(kind)) is kind


def is_of_script(kind: type) -> bool:
    """Return True if the module of `kind` is a file outside the standard library and the installed packages."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return (
        file is not None
        and not any(part in ("site-packages", "dist-packages") for part in file.split("/"))
        and (not file.startswith(_LIBRARY))
    )


_LIBRARY = types.__file__.rpartition("/")[0] + "/"


def is_plain(kind: type) -> bool:
    """
    Return True if the attributes of an object of this class describe it completely. That is so if the class and its
    bases are written in Python, and define no code that creates, copies, pickles or frees objects.
    """
    own = [base for base in kind.__mro__ if base is not object]
    return all(base.__flags__ & _MADE_BY_PYTHON and not any(_has_a_say(base)) for base in own)


def _has_a_say(kind: type) -> Iterator[bool]:
    """
    For each method in `_HOOKS` that the class `kind` defines, yield True if its author wrote the method. Yield False if
    the module `dataclasses` generated it for a frozen dataclass with slots: such a method only gets or sets attributes.
    """
    for hook in _HOOKS & vars(kind).keys():
        yield getattr(vars(kind)[hook], "__module__", None) != "dataclasses"


_HOOKS = frozenset({"__new__", "__del__", "__setstate__", "__getstate__", "__reduce__", "__reduce_ex__"})
_MADE_BY_PYTHON = 1 << 9
"""CPython's flag Py_TPFLAGS_HEAPTYPE. It is set on classes that a `class` statement created."""


def is_named_tuple(kind: type | None) -> bool:
    return kind is not None and issubclass(kind, tuple) and hasattr(kind, "_fields") and not hasattr(kind, "__del__")
