"""Reads and writes values as JSON: with msgspec if it is installed, otherwise with the standard library."""

from __future__ import annotations

import base64
import dataclasses
import json
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

try:
    import msgspec
except ImportError:  # the trainer's separate Python environment has no msgspec
    msgspec = None  # type: ignore[assignment]
HAS_MSGSPEC = msgspec is not None

Json = Any
T = TypeVar("T")
WHOLE_MAX = 2**63


class Encoded(bytes):
    """
    JSON that is encoded already. When a larger value that contains it is encoded, these bytes are copied unchanged.
    """


def encode(value: Json) -> bytes:
    """
    Return `value` as JSON in UTF-8. Bytes become base64, and a NamedTuple becomes a list. msgspec and the standard
    library write the same values; msgspec is faster.
    """
    if not HAS_MSGSPEC:
        return _encode_plainly(value)
    try:
        return msgspec.json.encode(value, enc_hook=_as_it_is)
    except UnicodeEncodeError:  # a lone surrogate, for example in a file name: json escapes it
        return _encode_plainly(value)


def _as_it_is(value: object) -> object:
    if isinstance(value, Encoded):
        return msgspec.Raw(value)
    raise TypeError(f"{type(value).__name__} is not plain")


def _encode_plainly(value: Json) -> bytes:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), check_circular=False, default=_as_plain)
    return text.encode()


def _as_plain(value: object) -> Json:
    if isinstance(value, Encoded):
        return json.loads(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is not plain")


def typed(kind: type[T], value: Json) -> T:
    """
    Convert a value decoded from JSON to the type `kind`. This can be a dataclass whose fields are plain values, tuples,
    dicts, unions or other dataclasses. Keys for which a dataclass has no field are dropped.

    Raises:
        ValueError: the value does not fit `kind`.
    """
    return cast(T, _typed(kind, value))


def _typed(kind: Any, value: Json) -> Any:
    of, origin = get_args(kind), get_origin(kind)
    if origin in (Union, UnionType):
        return _first_that_fits(of, value)
    if origin is Literal and value in of:
        return value
    if origin is tuple and type(value) is list:
        return _tuple(of, value)
    if origin is dict and type(value) is dict:
        return {_typed(of[0], name): _typed(of[1], each) for name, each in value.items()}
    if dataclasses.is_dataclass(kind) and type(value) is dict:
        return _built(kind, value)
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (bool, str, int, NoneType) and type(value) is kind and not (kind is int and abs(value) >= WHOLE_MAX):
        return value
    raise ValueError(f"{str(value)[:100]!r} is not a {kind}")


def _first_that_fits(kinds: tuple[Any, ...], value: Json) -> Any:
    for kind in kinds:
        try:
            return _typed(kind, value)
        except ValueError:
            continue
    raise ValueError(f"{str(value)[:100]!r} is none of {kinds}")


def _tuple(kinds: tuple[Any, ...], values: list[Json]) -> tuple[Any, ...]:
    if kinds[1:] == (...,):
        return tuple(_typed(kinds[0], each) for each in values)
    return tuple(_typed(kind, each) for kind, each in zip(kinds, values, strict=True))


def _built(kind: Any, fields: dict[str, Json]) -> Any:
    kinds = _kinds_of_fields(kind)
    try:
        return kind(**{name: _typed(kinds[name], each) for name, each in fields.items() if name in kinds})
    except TypeError as error:  # a field without a default is missing
        raise ValueError(str(error)) from None


@cache
def _kinds_of_fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
