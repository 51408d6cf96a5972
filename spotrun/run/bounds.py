"""
Limits all values that are read from a store, and defines the decoder that checks them. Without limits, a program with
write access to the store could write any value.

Within these limits, no computation of costs or times overflows. Some fields have a type that names their limit, such as
`Count` or `Seconds`. Times, dollar amounts and whole numbers of all other fields are limited too.
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
"""
The largest whole number that is accepted. Up to it, a float represents each whole number exactly. It is large enough
for 9 petabytes, counted in bytes, and for the steps of 285 years if each step takes a microsecond.
"""
SECONDS_MAX = 10 * 366 * 86_400
"""
Maximum length of a duration, in seconds: ten years. No job is allowed to last longer (`LONGEST` in spotrun/units.py).
"""
EARLIEST, TOO_LATE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2201, 1, 1, tzinfo=UTC)
"""The first time that is accepted, and the first that is too late: the accepted years are 2020 to 2200."""
NESTED_MAX = 64
"""
Maximum number of levels in a nested value. The decoder could read about a thousand levels, but the code that uses the
value could not.
"""
SMALL_BYTES = 64 * 1024
"""
Maximum size of a status object or an entry, in bytes. spotrun never writes a larger one, so it refuses to read one.
"""
LOG_CHUNK_BYTES = 1 << 20
"""Maximum size of one part of a log, in bytes. Agents never write a larger part, so readers read no further."""

Count = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A time in nanoseconds since 1970, as file systems record it."""
Scale = Annotated[float, msgspec.Meta(ge=0.1, le=1_000_000)]
"""The ratio of run time to system time. A job's is from 1 to 100,000; tests use others."""
Pid = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
ExitCode = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32)]
"""The exit code of a process; negative if a signal ended it."""
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""
A time with a time zone. Times without a zone are refused, because Python cannot compare them with times that have one.
"""

T = TypeVar("T")
_BUILDING = Lock()


class OutOfBounds(ValueError):
    """A stored value is outside of the limits, so spotrun cannot have written it."""


def decode(data: bytes | bytearray, kind: type[T]) -> T:
    """
    Decode a value stored as JSON, and check that each number in it is within the limits.

    Raises:
        OutOfBounds: the JSON is malformed or nested too deeply, or a number is too large.
    """
    try:
        value: T = _decoder(cast(Any, kind)).decode(data)
        _require(value, 0)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise OutOfBounds(str(error)) from None
    return value


def prepare(kind: Any) -> None:
    """
    Build the decoder for `kind` early. Modules call this while they are imported, because an import never runs in two
    threads at once (see `_decoder`).
    """
    _decoder(kind)


def amount_of(value: object) -> Decimal | None:
    """Read an amount of dollars from a string or a number. Return None if it is not an amount."""
    try:
        amount = Decimal(str(value))
        require_amount(amount)
    except (ArithmeticError, ValueError):
        return None
    return amount


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """
    Return the decoder of a type.

    Decoders are built one at a time. While msgspec 0.22 builds its data for a Struct, another thread could use the
    unfinished data, and the process would crash.
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
            raise OutOfBounds("a number exceeds the maximum")
    elif isinstance(value, dict | list | tuple):
        if depth == NESTED_MAX:
            raise OutOfBounds("the value is nested too deeply")
        for item in value.values() if isinstance(value, dict) else value:
            _require(item, depth + 1)


@cache
def _bounded_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """
    Return the fields that `_require` has to check. Texts need no check, nor do fields whose type already has a limit.
    """
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
