"""
Converts values of some Python types, such as datetime and Counter, to JSON and back. Supports only the types listed in
this module, so no checkpoint can make spotrun import a class or function that the checkpoint names.
"""

from __future__ import annotations

import argparse
import datetime
import types
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

Parts = list[Any]


class Unnamed(Exception):
    """
    Raised for a value that cannot be converted although its type is supported, such as a defaultdict whose default
    comes from a function of the script. The exception's text describes the value.
    """


class Kind(NamedTuple):
    """
    The name of a type, the function that splits a value of this type into parts, and the function that rebuilds the
    value from its parts.
    """

    name: str
    parts: Callable[[Any], Parts]
    make: Callable[..., Any]


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


KINDS: dict[type, Kind] = {
    range: Kind("range", lambda v: [v.start, v.stop, v.step], range),
    slice: Kind("slice", lambda v: [v.start, v.stop, v.step], slice),
    bytearray: Kind("bytearray", lambda v: [bytes(v)], bytearray),
    deque: Kind("deque", lambda v: [list(v), v.maxlen], deque),
    defaultdict: Kind(
        "defaultdict", _defaulting, lambda name, items: defaultdict(None if name is None else _FACTORIES[name], items)
    ),
    datetime.datetime: Kind("datetime", _moment, _at),
    datetime.time: Kind("time", _clock, lambda *parts: datetime.time(*parts[:-1], fold=parts[-1])),
    datetime.date: Kind("date", lambda v: [v.year, v.month, v.day], datetime.date),
    datetime.timedelta: Kind("timedelta", lambda v: [v.days, v.seconds, v.microseconds], datetime.timedelta),
    datetime.timezone: Kind("timezone", _timezone, datetime.timezone),
    zoneinfo.ZoneInfo: Kind("zone", _zone, zoneinfo.ZoneInfo),
    Decimal: Kind("decimal", lambda v: [str(v)], Decimal),
    Fraction: Kind("fraction", lambda v: [v.numerator, v.denominator], Fraction),
    uuid.UUID: Kind("uuid", lambda v: [v.hex], uuid.UUID),
    PurePosixPath: Kind("pure_path", lambda v: [str(v)], PurePosixPath),
    PureWindowsPath: Kind("windows_path", lambda v: [str(v)], PureWindowsPath),
    argparse.Namespace: Kind("arguments", lambda v: [vars(v)], _named(argparse.Namespace)),
    types.SimpleNamespace: Kind("names", lambda v: [vars(v)], _named(types.SimpleNamespace)),
    type(Ellipsis): Kind("ellipsis", lambda _: [], lambda: ...),
}
BY_NAME = {kind.name: kind for kind in KINDS.values()}
