"""
Converts any object, such as the arguments of a training, to plain values for people to read. A resume does not use
these values.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from spotrun.checkpoint.plain_kinds import KINDS

DEPTH_MAX = 50
_AS_IT_IS = (type(None), bool, int, float, complex, str, bytes)
_MODULES = ("torch", "numpy")


def plain(value: Any, depth: int = 0) -> Any:
    """
    Convert mappings, sequences, dataclasses and namespaces of any class to dicts and lists. Replace a class or function
    with its name. Return any other value unchanged. If an image cannot hold it, the code that writes the image replaces
    it with `note(value)`.
    """
    if depth > DEPTH_MAX:
        return note(value)
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if isinstance(value, _AS_IT_IS) or type(value).__module__.partition(".")[0] in _MODULES:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return {name: plain(getattr(value, name), depth + 1) for name in names}
    if isinstance(value, argparse.Namespace | types.SimpleNamespace):
        return {name: plain(item, depth + 1) for name, item in vars(value).items()}
    if isinstance(value, Mapping):
        return {key: plain(_item(value, key), depth + 1) for key in value}
    if isinstance(value, Sequence) and type(value) not in KINDS:
        items = [plain(_item(value, n), depth + 1) for n in range(len(value))]
        return tuple(items) if isinstance(value, tuple) else items
    return note(value) if isinstance(value, type | types.FunctionType) else value


def _item(holder: Any, key: Any) -> Any:
    """
    Return the item `key` of `holder`. If reading it raises an error, return the error's name: some configuration
    objects list keys that have no value.
    """
    try:
        return holder[key]
    except Exception as error:  # noqa: BLE001
        return f"<{type(error).__name__}>"


def note(value: Any) -> str:
    if isinstance(value, type | types.FunctionType):
        return f"<{value.__module__}.{value.__qualname__}>"
    return f"<{type(value).__module__}.{type(value).__qualname__}, not saved by spotrun>"
