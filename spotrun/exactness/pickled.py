"""
Reads the values in a pickle, or in several pickles in one file. No class or function that the pickle names is imported
or called.

Callers compare these values instead of the pickles' bytes, because pickles of equal values may differ. For example, a
pickle stores a string once if two values share it in memory, and twice if each has its own copy.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from math import prod
from typing import Any, TypeAlias

from spotrun.exactness.arrays import in_order_of_c, item_bytes, parts_of_array
from spotrun.exactness.same_everywhere import Clean

Parts: TypeAlias = Iterator[tuple[str, str]]
"""The parts of a file or an object. Each part is a place, such as `row 3, loss`, with its content as a text."""
Storage = Callable[[str], bytes]
"""A function that returns the content of a block of memory, given the block's name."""
TENSOR, IN_BYTES = "torch._utils._rebuild_tensor_v2", "torch.storage._load_from_bytes"
OF_NUMPY = tuple(
    f"numpy.{core}.{name}" for core in ("core", "_core") for name in ("multiarray._reconstruct", "numeric._frombuffer")
)
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


class PickledCall:
    """
    A placeholder for an object that a pickle would create by calling a function. The function is not called. Instead,
    the placeholder keeps the arguments of the call, and all content that the pickle adds to the object afterwards.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> PickledCall:
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

    def __call__(self, *args: Any) -> PickledCall:
        return PickledCall(self, *args)


class Memory:
    """A block of memory to which a torch pickle refers. A tensor is all or part of such a block."""

    def __init__(self, kind: str, where: str, count: int, load: Callable[[], bytes]) -> None:
        self.kind, self.where, self.count, self.load = kind, where, count, load
        self.item_bytes = ITEM_BYTES.get(kind.rpartition(".")[2].removesuffix("Storage"))

    def text(self) -> str:
        return f"{self.kind} {self.where} {self.count} {sha256(self.load()).hexdigest()}"

    def tensor(self, path: str, offset: int, size: Sequence[int], stride: Sequence[int]) -> Parts:
        """
        Yield the parts of a tensor. Read only the tensor's own bytes, not the whole block of memory in which the tensor
        lies. The block may be much larger: after a restore, an optimizer's tensors lie in one block with the whole
        checkpoint.
        """
        if self.item_bytes is None:
            yield path, f"{self.text()} {offset} {tuple(size)} {tuple(stride)}"
            return
        span = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        content = self.load()[offset * self.item_bytes : (offset + span) * self.item_bytes]
        kind = f"{self.kind} {self.where}"
        if _is_packed(size, stride):
            yield from parts_of_array(path, kind, size, content)
        elif _is_packed(size[::-1], stride[::-1]):
            yield from parts_of_array(path, f"{kind} transposed", size[::-1], content)
        else:
            yield path, f"{kind} {tuple(size)} {tuple(stride)} {sha256(content).hexdigest()}"


def _is_packed(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether a tensor's items follow one another without a gap, in C order."""
    return all(size[axis] < 2 or step == prod(size[axis + 1 :]) for axis, step in enumerate(stride))


class _Reader(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, storage: Storage) -> None:
        super().__init__(stream)
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        return type(f"{module}.{name}", (PickledCall,), {})

    def persistent_load(self, named: Any) -> Any:
        _, kind, key, where, count = named[:5]
        return Memory(_name(kind), where, count, lambda: self._storage(key))


def parts_of_pickle(content: bytes, clean: Clean, storage: Storage) -> Parts:
    """
    Yield the values in a pickle, each with its place.

    Raises:
        ValueError: `content` is not a complete pickle, or is of a kind that this reader does not support.
    """
    stream, number = io.BytesIO(content), 0
    try:
        while stream.tell() < len(content):
            value = _Reader(stream, storage).load()
            if value == MAGIC and not number:
                value = _older(stream)
            yield from _parts(value, f"object {number}" if number else "", clean, frozenset())
            number += 1
    except _NO_PICKLE as error:
        raise ValueError(f"not a readable pickle: {error}") from error


def _older(stream: io.BytesIO) -> Any:
    """
    Read the format that torch.save used before it wrote zip files, and in which tensors are still pickled. It consists
    of four pickles, followed by blocks of memory. The fourth pickle lists the names of the blocks.
    """
    pieces: dict[str, bytes] = {}
    sizes: dict[str, int] = {}

    class Reader(_Reader):
        def persistent_load(self, named: Any) -> Any:
            memory = super().persistent_load(named)
            sizes[named[2]] = memory.item_bytes
            return memory

    _, _, value = (Reader(stream, pieces.__getitem__).load() for _ in range(3))
    for key in Reader(stream, pieces.__getitem__).load():
        (count,) = struct.unpack("<q", stream.read(8))
        pieces[key] = stream.read(count * sizes[key])
    return value


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
    elif isinstance(value, Memory):
        yield path, value.text()
    elif isinstance(value, PickledCall):
        yield from _parts_of_made(value, path, clean, above | {id(value)})
    else:
        yield path, text_of(value, clean)


def _parts_of_made(made: PickledCall, path: str, clean: Clean, above: frozenset[int]) -> Parts:
    name = _name(type(made))
    if name in ("builtins.set", "builtins.frozenset", "__builtin__.set", "__builtin__.frozenset"):
        (items,), _ = made.parts[:2]
        yield path, f"set {digest_of_items(_joined(part, clean, above) for part in items)}"
        return
    if name in OF_NUMPY and (array := _array_of(made)) is not None:
        yield from parts_of_array(path, *array)
        return
    yield path, name
    if name == IN_BYTES and (memory := _memory_of(made)) is not None:
        yield f"{path}.0", memory.text()
        return
    if name == TENSOR and (memory := _memory_of(made.parts[0][0])) is not None:
        _, offset, size, stride, *rest = made.parts[0]
        yield from memory.tensor(f"{path}.0", offset, size, stride)
        yield from _parts(rest, f"{path}.1", clean, above)
        return
    for number, part in enumerate(made.parts):
        if part not in ((), {}):
            yield from _parts(part, f"{path}.{number}", clean, above)


def _array_of(made: PickledCall) -> tuple[str, Sequence[int], bytes] | None:
    """Return the type, the shape and the bytes of a numpy array; None if its items are objects or records."""
    match made.parts:
        case [(content, PickledCall() as kind, shape, order), {}]:
            is_fortran = order == "F"
        case [_, {}, (_, shape, PickledCall() as kind, is_fortran, content)]:
            pass
        case _:
            return None
    if isinstance(content, PickledCall):  # older pickle protocols store bytes as a text to be encoded
        match content.parts:
            case [(str(text), "latin1"), {}]:
                content = text.encode("latin1")
    match kind.parts:
        case [(str(code), *_), _, (_, str(order), None, *_)] if isinstance(content, bytes | bytearray):
            size = item_bytes(code)
            shape, content = in_order_of_c(shape, bytes(content), bool(is_fortran))
            return (f"{order}{code}", shape, content) if size * prod(shape) == len(content) else None
    return None


def _memory_of(value: Any) -> Memory | None:
    """Return the memory of a tensor whose bytes are inside the pickle; None for any other value."""
    if isinstance(value, PickledCall) and _name(type(value)) == IN_BYTES:
        stream = io.BytesIO(value.parts[0][0])
        magic = _Reader(stream, no_memory).load()
        value = _older(stream) if magic == MAGIC else None
    return value if isinstance(value, Memory) else None


def no_memory(_name: str) -> bytes:
    """
    Refuse to read memory that is not in the pickle.

    Raises:
        UnpicklingError: always.
    """
    raise pickle.UnpicklingError("memory outside of the pickle")


def _joined(value: Any, clean: Clean, above: frozenset[int]) -> str:
    return "\n".join(f"{path} {text}" for path, text in _parts(value, "", clean, above))


def digest_of_items(texts: Iterator[str]) -> str:
    """Return one digest over all texts. It does not depend on their order."""
    return sha256("\n".join(sorted(texts)).encode(errors="surrogatepass")).hexdigest()


def _key(key: Any, number: int, clean: Clean) -> str:
    return clean(repr(key)) if isinstance(key, str | int | float | bool | None) else f"key {number}"


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def text_of(value: Any, clean: Clean) -> str:
    """Return a text for a number, text or other simple value. Equal values give the same text in every process."""
    if isinstance(value, type):
        return _name(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes {sha256(value).hexdigest()}"
    text = clean(value) if isinstance(value, str) else repr(value)
    shown = repr(text) if isinstance(value, str) else text
    return shown if len(shown) <= SHOWN_MAX else f"sha256 {sha256(text.encode(errors='surrogatepass')).hexdigest()}"
