"""
How large may be what is read from a store, and how it is read: whoever may write there may write any figure.

Within these bounds every sum, product and moment of an account can be computed. A field says its own by its type
(`Count`, `Seconds`); a moment, an amount of dollars and a whole number are bounded wherever they stand.
"""

from __future__ import annotations

import types
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from threading import Lock
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from spotrun.offering import require_amount

NUMBER_MAX = 2**53
"""Up to here a float has each whole number: 9 petabytes, or a step in each microsecond of 285 years."""
SECONDS_MAX = 10 * 366 * 86_400
"""Ten years. A job lasts no longer (`LONGEST` in spotrun/units.py)."""
EARLIEST, TOO_LATE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2201, 1, 1, tzinfo=UTC)
"""The moments of the years 2020 to 2200."""
NESTED_MAX = 64
"""Levels. The decoder itself stops at about a thousand, and what takes such a value apart later stops before that."""
SMALL_BYTES = 64 * 1024
"""A status object, or an entry. What is larger was not written by a spotrun, and is not read."""
LOG_CHUNK_BYTES = 1 << 20
"""A part of a log. The rest of a longer one is not read: no agent has written it."""

Count = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Since 1970, as file systems keep them."""
Scale = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
"""Seconds of run time in a second."""
Pid = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
ExitCode = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32)]
"""That of a process which a signal has ended is negative."""
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""With its zone: two moments of which one has none cannot be compared."""

T = TypeVar("T")
_BUILDING = Lock()


class OutOfBounds(ValueError):
    """This is not what a spotrun writes there."""


def decode(data: bytes | bytearray, kind: type[T]) -> T:
    """
    The value that is stored as JSON, each of its figures within the bounds.

    Raises:
        OutOfBounds: it is not well-formed, or a figure is too large, or it is nested too deeply.
    """
    try:
        value: T = _decoder(cast(Any, kind)).decode(data)
        _require(value, 0)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise OutOfBounds(str(error)) from None
    return value


def prepare(kind: Any) -> None:
    """Build the decoder of a module's own types while it is imported, which no two threads do at once."""
    _decoder(kind)


def amount_of(value: object) -> Decimal | None:
    """The amount that a text or a number says; None if it says none."""
    try:
        amount = Decimal(str(value))
        require_amount(amount)
    except (ArithmeticError, ValueError):
        return None
    return amount


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """
    One at a time: while msgspec 0.22 builds what it knows of a Struct, another thread sees it half built, and the
    process dies of a null pointer.
    """
    with _BUILDING:
        return _built(kind)


@cache
def _built(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _require(value: Any, depth: int) -> None:
    if isinstance(value, msgspec.Struct):
        for name in _bounded_fields(type(value)):
            _require(getattr(value, name), depth)
    elif isinstance(value, datetime):
        if value.tzinfo is None or not EARLIEST <= value < TOO_LATE:
            raise OutOfBounds(f"{value.isoformat()} is not in the years 2020 to 2200")
    elif isinstance(value, Decimal):
        require_amount(value)
    elif isinstance(value, int):
        if abs(value) > NUMBER_MAX:
            raise OutOfBounds("a number is larger than any that is counted")
    elif isinstance(value, dict | list | tuple):
        if depth == NESTED_MAX:
            raise OutOfBounds("it is nested too deeply")
        for item in value.values() if isinstance(value, dict) else value:
            _require(item, depth + 1)


@cache
def _bounded_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that have to be looked at. The others are texts, or the decoder has compared them with their type."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(field.name for field in msgspec.structs.fields(kind) if _may_hold_more(hints[field.name]))


def _may_hold_more(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        of, meta = get_args(hint)
        return _may_hold_more(of) and meta.le is None
    if origin in (Union, types.UnionType, tuple, list, dict):
        return any(map(_may_hold_more, get_args(hint)))
    if hint in (str, float, bool, type(None), msgspec.UnsetType, ...):
        return False
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return bool(_bounded_fields(hint))
    return not (isinstance(hint, type) and issubclass(hint, Enum))
