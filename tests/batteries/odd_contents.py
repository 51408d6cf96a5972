"""What may become of a stored object, at random: of its bytes, or of a figure that is well written and odd."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

NOUGHT = (None, True, False, "", [], {}, "x", "\x1b[2J\x07", "\ud800", "../../x", "é" * 300)
NUMBERS = (0, -1, 1, 0.5, -0.5, 2**31, 2**53, 2**53 + 1, 2**63, -(2**63), 2**64, 10**400, -(10**400))
FLOATS = (1e308, -1e308, 5e-324, 3.1e8, float("nan"), float("inf"), float("-inf"))
AMOUNTS = (
    "0",
    "-1",
    "1e12",
    "999999999999.999999999",
    "1e400",
    "-1e400",
    "1e-400",
    "NaN",
    "sNaN",
    "Infinity",
    "1" * 60,
)
MOMENTS = (
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "1970-01-01T00:00:00Z",
    "2020-01-01T00:00:00Z",
    "2200-12-31T23:59:59Z",
    "2026-03-01T12:00:00",
    "2026-03-01T11:00:00Z",
)
TOKENS = (b"1e400", b"-1e400", b"-0", b"1E5", b"9" * 5000, b"[" * 900 + b"]" * 900, b'{"a":' * 300 + b"1" + b"}" * 300)
"""What no encoder of Python writes, in the place of a value."""
_PLACE = "the place of a token"


def of_bytes(data: bytes, random: Random) -> bytes | None:
    """Another content, of a bad disk or a bad hand; None: the object is gone."""
    return random.choice(_OF_BYTES)(data, random)


def of_figures(body: bytes, random: Random) -> bytes:
    """The same JSON with one to three of its values, keys or types changed. What is no JSON loses some bytes."""
    try:
        value = json.loads(body)
    except ValueError:
        return body[: random.randrange(len(body) + 1)]
    for _ in range(random.choice((1, 1, 2, 3))):
        value = _changed(value, random)
    text = json.dumps(value, separators=(",", ":")).encode()
    token = random.choice(TOKENS)
    return text.replace(json.dumps(_PLACE).encode(), token)


def _flipped(data: bytes, random: Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(random.choice((1, 1, 8))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _with_bad_utf8(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice((b"\xff\xfe", b"\xc3", b"\xed\xa0\x80")) + data[at:]


_OF_BYTES: tuple[Callable[[bytes, Random], bytes | None], ...] = (
    _flipped,
    _flipped,
    lambda data, random: data[: random.randrange(len(data) + 1)],
    lambda data, random: b"",
    lambda data, random: None,
    lambda data, random: data + data,
    lambda data, random: bytes(len(data)),
    lambda data, random: random.randbytes(len(data)),
    lambda data, random: random.choice((b"null", b"[]", b"{}", b"0", b'""', b"NaN")),
    lambda data, random: random.choice((b"[", b'{"a":', b" ", b"9")) * 70_000,
    _with_bad_utf8,
)


def _changed(value: Any, random: Random) -> Any:
    """A copy in which one place is another."""
    places = list(_places(value))
    if not places:
        return _odd(value, random)
    holder, key = random.choice(places)
    act = random.random()
    if act < 0.08 and isinstance(holder, dict):
        del holder[key]
    elif act < 0.12 and isinstance(holder, dict):
        holder[random.choice(("unknown", "type", "", "\x1b[2J", "x" * 300))] = holder.pop(key)
    elif act < 0.17:
        other, at = random.choice(places)
        holder[key] = json.loads(json.dumps(other[at]))
    else:
        holder[key] = _odd(holder[key], random)
    return value


def _places(value: Any) -> Any:
    """Each value in a value, with what holds it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        yield value, key
        yield from _places(item)


def _odd(value: Any, random: Random) -> Any:
    """Mostly one of the same kind."""
    if random.random() < 0.25:
        return random.choice((*NOUGHT, *NUMBERS, *FLOATS, *AMOUNTS, *MOMENTS, _PLACE))
    if isinstance(value, int | float):
        return random.choice((*NUMBERS, *FLOATS, _PLACE, value + 1, value * 1000, random.randrange(2**53)))
    if isinstance(value, str) and value[:2] == "20":
        return random.choice(MOMENTS)
    if isinstance(value, str) and value.replace(".", "").isdigit():
        return random.choice(AMOUNTS)
    return random.choice((*NOUGHT, "y" * 5000))
