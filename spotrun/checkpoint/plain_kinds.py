"""
Converts values of some Python types, such as datetime and Counter, to JSON and back. Supports only the types listed in
this module, so no checkpoint can make spotrun import a class or function that the checkpoint names.

A value that is read back takes about as much memory and time as the bytes that describe it. That is why each kind
accepts only parts of the types that it writes: `bytearray` would make any number of bytes of one number.
"""

from __future__ import annotations

import argparse
import datetime
import time
import types
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Integral
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Mapping_ = TypeVar("Mapping_", bound=dict[Any, Any])
Parts = list[Any]
WHOLE_BITS_MAX = 14_000
"""
Maximum bits of a whole number in a range, a slice or a fraction, and of a key that is compared with another one. With
longer numbers, some calculations take a time that grows with the square of their length. Nor does Python print them.
"""
_TOGETHER = 100
"""Number of keys that are put into a mapping or a set before the time is checked again."""
_FREE_S = 2.0
_SECONDS_PER_KEY = 20e-6
"""
Maximum processor seconds to put keys into one mapping or set: `_FREE_S`, and this much for each key. They usually take
less than a hundredth of this.
"""


class Unnamed(Exception):
    """
    Raised for a value that cannot be converted although its type is supported, such as a defaultdict whose default
    comes from a function of the script. The exception's text describes the value.
    """


class Kind(NamedTuple):
    """
    The name of a type, the function that splits a value of this type into parts, the function that rebuilds the value
    from its parts, and the types of the parts. The last parts may be missing.
    """

    name: str
    parts: Callable[[Any], Parts]
    make: Callable[..., Any]
    types: tuple[type | tuple[type, ...], ...]

    def check(self, parts: Parts) -> None:
        """
        Check the parts before they are written, and before a value is made of them.

        Raises:
            Unnamed: a part has the wrong type, or is too long a number.
        """
        if len(parts) > len(self.types):
            raise Unnamed(f"a {self.name} with {len(parts)} parts")
        for part, expected in zip(parts, self.types, strict=False):
            if not isinstance(part, expected):
                raise Unnamed(f"a {self.name} with a {type(part).__name__} in it")
            if isinstance(part, int) and part.bit_length() > WHOLE_BITS_MAX:
                raise Unnamed(f"a {self.name} with a number of more than {WHOLE_BITS_MAX:,} bits")


def filled_mapping(made: Mapping_, items: Sequence[tuple[Any, Any]]) -> Mapping_:
    """Put `items` into the empty mapping `made`. Raise the same errors as `filled_set`."""
    _check_keys([key for key, _ in items if type(key) is not str])
    base = OrderedDict if isinstance(made, OrderedDict) else dict
    return _filled(made, items, base.update)


def filled_set(items: Sequence[Any]) -> set[Any]:
    """
    Return a set of `items`.

    The hashes of numbers are known. So a checkpoint may contain numbers that Python compares with one another, or
    whose places in the set's table Python searches one after another, until each new number takes as long as all
    numbers before it. That is why this function measures the time that it takes.

    Raises:
        Unnamed: it takes too long, or would take too long.
    """
    _check_keys(items)
    return _filled(set(), items, set.update)


def _filled(made: T, items: Sequence[Any], update: Callable[[T, Sequence[Any]], None]) -> T:
    if len(items) <= _TOGETHER:
        update(made, items)
        return made
    begun = time.thread_time()
    for start in range(0, len(items), _TOGETHER):
        update(made, items[start : start + _TOGETHER])
        if time.thread_time() - begun > _FREE_S + _SECONDS_PER_KEY * start:
            raise Unnamed("a collection of keys that get in one another's way")
    return made


def _check_keys(keys: Sequence[Any]) -> None:
    """Raise Unnamed for keys that Python has to compare because their hashes are equal, but that are too long."""
    if len(keys) < 2:
        return
    hashes = [hash(key) for key in keys]
    if len(_filled(set(), hashes, set.update)) < len(hashes) and not all(map(_is_short, keys)):
        raise Unnamed(f"a collection with a key of more than {WHOLE_BITS_MAX:,} bits, and another of the same hash")


def _is_short(key: object) -> bool:
    """Return False for a number that takes long to compare with a Decimal, and for a key that contains one."""
    if isinstance(key, tuple | frozenset):
        return all(map(_is_short, key))
    if isinstance(key, slice):
        return _is_short((key.start, key.stop, key.step))
    return not isinstance(key, int) or key.bit_length() <= WHOLE_BITS_MAX


_FACTORIES = {
    kind.__name__: kind
    for kind in (int, float, str, bool, complex, bytes, list, tuple, dict, set, Counter, OrderedDict, deque)
}


def _defaulting(value: defaultdict[Any, Any]) -> Parts:
    factory = value.default_factory
    if factory is None:
        return [None, list(value.items())]
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise Unnamed("a defaultdict whose default comes from a function of the script")
    return [name, list(value.items())]


def _make_defaulting(name: str | None, items: Sequence[tuple[Any, Any]]) -> defaultdict[Any, Any]:
    return filled_mapping(defaultdict(None if name is None else _FACTORIES[name]), items)


def _moment(value: datetime.datetime) -> Parts:
    return [value.year, value.month, value.day, *_clock(value)]


def _at(*parts: Any) -> datetime.datetime:
    *moment, fold = parts
    return datetime.datetime(*moment, fold=fold)  # noqa: DTZ001 - the last part is the zone, if any


def _clock(value: datetime.datetime | datetime.time) -> Parts:
    return [value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold]


def _zone(value: zoneinfo.ZoneInfo) -> Parts:
    if value.key is None:
        raise Unnamed("a time zone without a name")
    return [value.key]


def _timezone(value: datetime.timezone) -> Parts:
    return list(value.__getinitargs__())  # type: ignore[attr-defined]


def _named(kind: Any) -> Callable[[Any], Any]:
    def make(names: Any) -> Any:
        made = kind()
        made.__dict__.update(names)
        return made

    return make


_NONE = type(None)
_WHOLE = (int, Integral)
"""A fraction may hold whole numbers of numpy, too."""
_CLOCK = (_WHOLE, _WHOLE, _WHOLE, _WHOLE, (_NONE, datetime.timezone, zoneinfo.ZoneInfo), _WHOLE)
KINDS: dict[type, Kind] = {
    range: Kind("range", lambda v: [v.start, v.stop, v.step], range, (_WHOLE,) * 3),
    slice: Kind("slice", lambda v: [v.start, v.stop, v.step], slice, (object,) * 3),
    bytearray: Kind("bytearray", lambda v: [bytes(v)], bytearray, (bytes,)),
    deque: Kind("deque", lambda v: [list(v), v.maxlen], deque, (list, (_NONE, int))),
    defaultdict: Kind("defaultdict", _defaulting, _make_defaulting, ((_NONE, str), list)),
    datetime.datetime: Kind("datetime", _moment, _at, (_WHOLE, _WHOLE, _WHOLE, *_CLOCK)),
    datetime.time: Kind("time", _clock, lambda *parts: datetime.time(*parts[:-1], fold=parts[-1]), _CLOCK),
    datetime.date: Kind("date", lambda v: [v.year, v.month, v.day], datetime.date, (_WHOLE,) * 3),
    datetime.timedelta: Kind(
        "timedelta", lambda v: [v.days, v.seconds, v.microseconds], datetime.timedelta, (_WHOLE,) * 3
    ),
    datetime.timezone: Kind("timezone", _timezone, datetime.timezone, (datetime.timedelta, str)),
    zoneinfo.ZoneInfo: Kind("zone", _zone, zoneinfo.ZoneInfo, (str,)),
    Decimal: Kind("decimal", lambda v: [str(v)], Decimal, (str,)),
    Fraction: Kind("fraction", lambda v: [v.numerator, v.denominator], Fraction, (_WHOLE,) * 2),
    uuid.UUID: Kind("uuid", lambda v: [v.hex], uuid.UUID, (str,)),
    PurePosixPath: Kind("pure_path", lambda v: [str(v)], PurePosixPath, (str,)),
    PureWindowsPath: Kind("windows_path", lambda v: [str(v)], PureWindowsPath, (str,)),
    argparse.Namespace: Kind("arguments", lambda v: [vars(v)], _named(argparse.Namespace), (dict,)),
    types.SimpleNamespace: Kind("names", lambda v: [vars(v)], _named(types.SimpleNamespace), (dict,)),
    type(Ellipsis): Kind("ellipsis", lambda _: [], lambda: ..., ()),
}
BY_NAME = {kind.name: kind for kind in KINDS.values()}
