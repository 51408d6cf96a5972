"""
What a pickle, or several in one file, says, value by value. Nothing that it names is imported or called.

Two pickles of equal objects may differ in their bytes, as they also say which equal texts were one object.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, TypeAlias

from spotrun.exactness.same_everywhere import Clean

Parts: TypeAlias = Iterator[tuple[str, str]]
"""Where in a file, and what is there."""
Storage = Callable[[str, str], str]
"""What is in a piece of memory, by its name and its kind."""
MAGIC = 0x1950A86A20F9469CFC6C
ITEM_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "Untyped": 1, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip

SHOWN_MAX = 80
PROTO = b"\x80"
_NO_PICKLE = (
    pickle.UnpicklingError, EOFError, AttributeError, TypeError, IndexError, KeyError, RecursionError, OverflowError,
    MemoryError, struct.error,
)  # fmt: skip


class Made:
    """What a pickle makes by a call: what it would call, with what, and what it puts into it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Made:
        made = super().__new__(cls)
        made.parts = [args, kwargs]
        return made

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.parts: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.parts.append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append((key, value))

    def append(self, value: Any) -> None:
        self.parts.append(value)

    def extend(self, values: Any) -> None:
        self.parts.extend(values)

    add = append

    def __call__(self, *args: Any) -> Made:
        return Made(self, *args)


class Memory(str):
    """A piece of memory that a pickle of torch refers to."""


class _Reader(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, storage: Storage) -> None:
        super().__init__(stream)
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        return type(f"{module}.{name}", (Made,), {})

    def persistent_load(self, named: Any) -> Any:
        what, kind, key, where, count = named[:5]
        return Memory(f"{what} {_name(kind)} {where} {count} {self._storage(key, _name(kind))}")


def parts_of_pickle(content: bytes, clean: Clean, storage: Storage) -> Parts:
    """
    Raises:
        ValueError: it is no whole pickle, or one of a kind that cannot be read so.
    """
    stream, number = io.BytesIO(content), 0
    try:
        while stream.tell() < len(content):
            value = _Reader(stream, storage).load()
            if value == MAGIC and not number:
                yield from _parts_of_older(stream, clean)
                return
            yield from _parts(value, f"object {number}" if number else "", clean, frozenset())
            number += 1
    except _NO_PICKLE as error:
        raise ValueError(f"no pickle that can be read: {error}") from error


def _parts_of_older(stream: io.BytesIO, clean: Clean) -> Parts:
    """
    What torch.save wrote before it wrote archives, as a pickle of a tensor still does: four pickles, then each piece of
    memory. Pieces are named by their addresses.
    """
    numbers: dict[str, int] = {}
    kinds: list[str] = []

    def number_of(key: str, kind: str) -> str:
        if key not in numbers:
            numbers[key] = len(kinds)
            kinds.append(kind)
        return f"piece {numbers[key]}"

    def reader() -> _Reader:
        return _Reader(stream, number_of)

    _, _, value = reader().load(), reader().load(), reader().load()
    yield from _parts(value, "", clean, frozenset())
    pieces = {}
    for key in reader().load():
        (count,) = struct.unpack("<q", stream.read(8))
        kind = kinds[numbers[key]].rpartition(".")[2].removesuffix("Storage")
        pieces[numbers[key]] = sha256(stream.read(count * ITEM_BYTES[kind])).hexdigest()
    yield from ((f"piece {number}", pieces[number]) for number in sorted(pieces))
    if rest := stream.read():
        yield "rest", sha256(rest).hexdigest()


def _parts(value: Any, path: str, clean: Clean, above: frozenset[int]) -> Parts:
    if id(value) in above:
        yield path, "itself"
    elif isinstance(value, dict):
        yield path, f"dict of {len(value)}"
        for number, (key, part) in enumerate(value.items()):
            yield from _parts(part, f"{path}[{_key(key, number, clean)}]", clean, above | {id(value)})
    elif isinstance(value, list | tuple):
        yield path, f"{type(value).__name__} of {len(value)}"
        for number, part in enumerate(value):
            yield from _parts(part, f"{path}[{number}]", clean, above | {id(value)})
    elif isinstance(value, set | frozenset):
        yield path, f"set {digest_of_items(_joined(part, clean, above | {id(value)}) for part in value)}"
    elif isinstance(value, Made):
        yield from _parts_of_made(value, path, clean, above | {id(value)})
    else:
        yield path, text_of(value, clean)


def _parts_of_made(made: Made, path: str, clean: Clean, above: frozenset[int]) -> Parts:
    name = _name(type(made))
    if name in ("builtins.set", "builtins.frozenset", "__builtin__.set", "__builtin__.frozenset"):
        (items,), _ = made.parts[:2]
        yield path, f"set {digest_of_items(_joined(part, clean, above) for part in items)}"
        return
    yield path, name
    if name == "torch.storage._load_from_bytes":
        ((content,), _) = made.parts[:2]
        yield from ((f"{path} {place}", text) for place, text in parts_of_pickle(content, clean, no_memory))
        return
    for number, part in enumerate(made.parts):
        if part not in ((), {}):
            yield from _parts(part, f"{path}.{number}", clean, above)


def no_memory(_name: str, _kind: str) -> str:
    """
    Raises:
        UnpicklingError: what a pickle refers to is not there.
    """
    raise pickle.UnpicklingError("memory outside of the pickle")


def _joined(value: Any, clean: Clean, above: frozenset[int]) -> str:
    return "\n".join(f"{path} {text}" for path, text in _parts(value, "", clean, above))


def digest_of_items(texts: Iterator[str]) -> str:
    """Whatever their order."""
    return sha256("\n".join(sorted(texts)).encode(errors="surrogatepass")).hexdigest()


def _key(key: Any, number: int, clean: Clean) -> str:
    return clean(repr(key)) if isinstance(key, str | int | float | bool | None) else f"key {number}"


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def text_of(value: Any, clean: Clean) -> str:
    """A plain value, in words that are the same in each process."""
    if isinstance(value, type):
        return _name(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes {sha256(value).hexdigest()}"
    text = clean(value) if isinstance(value, str) else repr(value)
    shown = repr(text) if isinstance(value, str) else text
    return shown if len(shown) <= SHOWN_MAX else f"sha256 {sha256(text.encode(errors='surrogatepass')).hexdigest()}"
