"""
Encodes immutable plain values for a checkpoint.

Most values stay as they are, because a checkpoint can contain them (checkpoint/tree.py). Any other immutable value
becomes a tuple that begins with the name of its kind. The script's own tuples could be confused with such encodings, so
each of them is encoded too, as a tuple that begins with "tuple".
"""

from __future__ import annotations

import datetime
import math
import zoneinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import torch

Encoded: TypeAlias = Any

_NUMPY = frozenset(np.dtype(code).type for code in "?bBhHiIlLefdFD")
SCALARS = _NUMPY | {
    type(None), bool, int, float, complex, str, bytes, range, slice, type(...), datetime.date, datetime.datetime,
    datetime.time, datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo, Decimal, Fraction, UUID, Path, PosixPath,
    PurePath, PurePosixPath, torch.dtype, torch.device, torch.Size,
}  # fmt: skip
"""Types whose values Python compares without calling code of the script, so `==` is safe for them."""


class NotPlain(Exception):
    """Raised for a value that checkpoints cannot contain. The message describes the value."""


def is_scalar(value: object) -> bool:
    """Return True if `value` is a scalar: a value of a type in `SCALARS`, or a tuple of scalars."""
    return type(value) in SCALARS or (type(value) is tuple and all(map(is_scalar, value)))


def same(before: object, now: object) -> bool:
    """Return whether `before` and `now` are the same object, or equal plain values of the same type."""
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if type(now) is tuple and type(before) is tuple:
        return len(before) == len(now) and all(map(same, before, now))
    if type(now) is slice and type(before) is slice:
        return all(map(same, _bounds(before), _bounds(now)))
    if type(now) is float and type(before) is float:
        return before == now and math.copysign(1.0, before) == math.copysign(1.0, now)
    if type(now) is Decimal and type(before) is Decimal:
        return before.compare_total(now) == 0  # `==` raises for a signalling NaN
    return type(now) in SCALARS and bool(before == now)


def encode(value: Any) -> Encoded:
    """
    Return the encoded form of a scalar value (`is_scalar`).

    Raises:
        NotPlain: the value is a slice whose bounds are not scalars, or has a time zone without a name.
    """
    if type(value) is tuple:
        return ("tuple", *map(encode, value))
    if type(value) is slice and not all(map(is_scalar, _bounds(value))):
        raise NotPlain("a slice")
    zone = value.tzinfo if isinstance(value, datetime.datetime | datetime.time) else value
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key is None:
        raise NotPlain("a time zone without a name")
    if not isinstance(zone, datetime.timezone | zoneinfo.ZoneInfo | None) and zone is not value:
        raise NotPlain(f"a time in a {name_of(zone)}")
    return value


def decode(encoded: Encoded) -> Any:
    """
    Return the value that was encoded.

    Raises:
        ValueError: `encoded` is of an unknown kind.
    """
    if type(encoded) is not tuple:
        return encoded
    if encoded[0] != "tuple":
        raise ValueError(encoded[0])
    return tuple(map(decode, encoded[1:]))


def _bounds(value: slice[Any, Any, Any]) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


def name_of(value: object) -> str:
    """Return the class name of `value`, with its module unless that is builtins."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
