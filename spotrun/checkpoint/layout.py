"""
The checkpoint image: what lies in an arena, and byte for byte what is uploaded. Needs no torch.

    b"SPOTRUN1" | u64 header size | header, JSON in UTF-8 | zeros to a multiple of 64 | tensors, each at a multiple
    of 64

    header = {"format": 1, "tensors": [{"dtype", "shape", "offset", "size_bytes"}, …], "tree": …, "meta": {…}}

`offset` counts from where the tensors begin. `tree` is the state with its tensors taken out: JSON's own null, true,
numbers, strings and lists stand for themselves, and every other value is an object of one key that names its kind
(`{"tuple": […]}`). Reading builds plain containers and numbers only; no byte of an image ever names code.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec

from spotrun.errors import CheckpointDamaged

MAGIC = b"SPOTRUN1"
FORMAT = 1
ALIGNMENT = 64
DEPTH_MAX = 200

ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
"""Bytes per element of the dtypes that an image may hold, by torch's names."""

_PREFIX = struct.Struct("<8sQ")
PREFIX_BYTES = _PREFIX.size
_INT_PLAIN_MAX = 1 << 62
_EXTENT_MAX = 1 << 48

Buffer = bytes | bytearray | memoryview
Path = tuple[object, ...]
Json = Any


class Unsavable(Exception):
    """A value that an image cannot hold, and where in the state it is: `callbacks.MyCallback.handle`."""

    def __init__(self, path: Path, what: str) -> None:
        self.where = ".".join(map(str, path)) or "the state"
        self.what = what
        super().__init__(f"{self.where} is {what}")


class TensorEntry(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Header:
    """`data_start` is where the tensors begin, counted from the first byte of the image."""

    tensors: tuple[TensorEntry, ...]
    tree: Json
    meta: dict[str, Any]
    data_start: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole image."""
        return self.data_start + max((t.offset + t.size_bytes for t in self.tensors if t.size_bytes), default=0)


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def place(kinds: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[TensorEntry, ...]:
    """Tensors of these (dtype, shape), one after the other."""
    return _place(tuple(kinds))


@lru_cache(maxsize=4)
def _place(kinds: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[TensorEntry, ...]:
    """Remembered: all snapshots of a training are of the same tensors."""
    entries = []
    offset = 0
    for dtype, shape in kinds:
        size_bytes = ITEM_BYTES[dtype] * math.prod(shape)
        entries.append(TensorEntry(dtype, shape, offset, size_bytes))
        offset += aligned(size_bytes)
    return tuple(entries)


def encode_header(tensors: Sequence[TensorEntry], tree: Json, meta: Mapping[str, Any]) -> bytes:
    """All that comes before the tensors, padded. `meta` is plain JSON and free for its writer to use."""
    header = {"format": FORMAT, "tensors": _entries_json(tuple(tensors)), "tree": tree, "meta": dict(meta)}
    text = _json(header)
    head = _PREFIX.pack(MAGIC, len(text)) + text
    return head.ljust(aligned(len(head)), b"\0")


@lru_cache(maxsize=4)
def _entries_json(tensors: tuple[TensorEntry, ...]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode([entry._asdict() for entry in tensors]))


def _json(header: dict[str, Json]) -> bytes:
    try:
        return msgspec.json.encode(header)
    except UnicodeEncodeError:  # a lone surrogate, as in the name of a file: json escapes it, ten times as slowly
        plain = header | {"tensors": json.loads(bytes(header["tensors"]))}
        return json.dumps(plain, allow_nan=False, separators=(",", ":"), check_circular=False).encode()


def image_size(prefix: Buffer) -> int:
    """
    The size that the image must have, from its first bytes (the header must be whole; the tensors need not be there).

    Raises:
        CheckpointDamaged
    """
    return _parse_header(prefix).size_bytes


def decode_header(image: Buffer) -> Header:
    """
    The header of a whole image, checked: every tensor lies inside the image, overlaps no other, and has its shape's
    size.

    Raises:
        CheckpointDamaged: take an older checkpoint.
    """
    header = _parse_header(image)
    if header.size_bytes > len(image):
        raise CheckpointDamaged(f"the checkpoint has {len(image)} bytes, and its index needs {header.size_bytes}")
    return header


def header_end(image: Buffer) -> int:
    """
    Where the header of a whole image ends, from its first `PREFIX_BYTES`.

    Raises:
        CheckpointDamaged
    """
    if len(image) < PREFIX_BYTES:
        raise CheckpointDamaged(f"the checkpoint has {len(image)} bytes, too few for a header")
    magic, size_bytes = _PREFIX.unpack_from(image)
    if magic != MAGIC:
        raise CheckpointDamaged(f"the checkpoint begins with {magic!r} instead of {MAGIC!r}")
    end: int = PREFIX_BYTES + size_bytes
    if end > len(image):
        raise CheckpointDamaged(f"the checkpoint's header ends at byte {end} of {len(image)}")
    return end


def begin_bytes(header: Header) -> int:
    """
    So many of the image's first bytes hold all of the state but its last entry: a trainer that needs that later can
    begin when they are there.
    """
    (kind,) = header.tree if type(header.tree) is dict and len(header.tree) == 1 else ("",)
    if kind not in _MAPPINGS or not header.tree[kind]:
        return header.size_bytes
    first = next(_tensors_in(header.tree[kind][-1]), None)
    return header.size_bytes if first is None else header.data_start + header.tensors[first].offset


def _tensors_in(node: Json) -> Iterator[int]:
    """Their numbers, in the order in which they lie in the image."""
    if type(node) is list:
        for item in node:
            yield from _tensors_in(item)
    elif type(node) is dict:
        for kind, content in node.items():
            if kind in _OF_TENSORS:
                yield content if type(content) is int else content[0]
            else:
                yield from _tensors_in(content)


def _parse_header(image: Buffer) -> Header:
    end = header_end(image)
    fields = _object(_parse_json(bytes(image[PREFIX_BYTES:end])), {"format", "tensors", "tree", "meta"})
    if fields["format"] != FORMAT or type(fields["format"]) is not int:
        raise CheckpointDamaged(f"the checkpoint has format {fields['format']!r}; this spotrun reads {FORMAT}")
    if type(fields["meta"]) is not dict or type(fields["tensors"]) is not list:
        raise CheckpointDamaged("the checkpoint's header has fields of a wrong kind")
    tensors = tuple(_tensor_entry(entry) for entry in fields["tensors"])
    _check_overlaps(tensors)
    return Header(tensors, fields["tree"], fields["meta"], aligned(end))


def _parse_json(text: bytes) -> Json:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise CheckpointDamaged("the checkpoint's header is not JSON", hint=str(error)[:200]) from error


def _object(value: Json, keys: set[str]) -> dict[str, Json]:
    if type(value) is not dict or value.keys() != keys:
        raise CheckpointDamaged(f"the checkpoint's header lacks one of {', '.join(sorted(keys))}, or has more")
    return value


def _tensor_entry(value: Json) -> TensorEntry:
    fields = _object(value, {"dtype", "shape", "offset", "size_bytes"})
    dtype, shape, offset, size_bytes = fields["dtype"], fields["shape"], fields["offset"], fields["size_bytes"]
    if type(dtype) is not str or dtype not in ITEM_BYTES:
        raise CheckpointDamaged("the checkpoint holds a tensor of an unknown dtype")
    if type(shape) is not list or len(shape) > 64 or not all(_is_extent(extent) for extent in shape):
        raise CheckpointDamaged("the checkpoint holds a tensor of an impossible shape")
    if not (_is_extent(offset) and _is_extent(size_bytes)) or offset % ALIGNMENT:
        raise CheckpointDamaged("the checkpoint holds a tensor at an impossible place")
    if size_bytes != ITEM_BYTES[dtype] * math.prod(shape):
        raise CheckpointDamaged("the checkpoint holds a tensor whose size is not that of its shape")
    return TensorEntry(dtype, tuple(shape), offset, size_bytes)


def _is_extent(value: Json) -> bool:
    return type(value) is int and 0 <= value <= _EXTENT_MAX


def _check_overlaps(tensors: Sequence[TensorEntry]) -> None:
    end = 0
    for tensor in sorted((t for t in tensors if t.size_bytes), key=lambda t: t.offset):
        if tensor.offset < end:
            raise CheckpointDamaged("the checkpoint holds tensors that overlap")
        end = tensor.offset + tensor.size_bytes


# --- the tree --------------------------------------------------------------------------------------------------------

_OF_TENSORS = frozenset({"tensor", "array", "scalar"})
"""Objects that name a tensor of the image, or begin with the name of one."""
_AS_IT_IS = frozenset({type(None), bool, str})
_OF_TORCH = frozenset({"torch", "torch.nn.parameter"})
EncodeOther = Callable[[Any, Path], Json]
"""Encodes what this module does not know (tensors), or raises Unsavable."""
DecodeOther = Callable[[str, Json], Any]
"""Decodes the object {kind: content} that this module does not know, or raises CheckpointDamaged."""


def encode_tree(value: Any, encode_other: EncodeOther, path: Path = ()) -> Json:
    """
    `value` as JSON. Subclasses of the plain types become these; a namedtuple becomes a tuple.

    Raises:
        Unsavable: names the first value that has no place in an image.
    """
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is int:
        return _encode_int(value)
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if len(path) > DEPTH_MAX:
        raise Unsavable(path[:5], f"nested more than {DEPTH_MAX} levels deep")
    if kind.__module__ in _OF_TORCH:
        return encode_other(value, path)  # nearly all there is in a state: asked before what takes longer to ask
    if kind is dict or isinstance(value, Mapping):
        return _encode_mapping(value, encode_other, path)
    if kind is list:
        return [encode_tree(item, encode_other, (*path, n)) for n, item in enumerate(value)]
    return _encode_rarer(value, encode_other, path)


def _encode_rarer(value: Any, encode_other: EncodeOther, path: Path) -> Json:
    if isinstance(value, bool | str | int) and type(value).__module__ != "numpy":
        return _encode_int(int(value)) if isinstance(value, int) else str.__str__(value)
    if isinstance(value, float) and type(value).__module__ != "numpy":
        return encode_tree(float(value), encode_other, path)
    if type(value) is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, PurePath):
        return {"path": str(value)}
    if type(value).__module__.partition(".")[0] in ("torch", "numpy"):  # torch.Size is a tuple
        return encode_other(value, path)
    if isinstance(value, list | tuple | AbstractSet):
        items = sorted(value, key=repr) if isinstance(value, AbstractSet) else value
        encoded = [encode_tree(item, encode_other, (*path, n)) for n, item in enumerate(items)]
        return encoded if isinstance(value, list) else {_sequence_kind(value): encoded}
    return encode_other(value, path)


def _sequence_kind(value: Any) -> str:
    return "tuple" if isinstance(value, tuple) else "frozenset" if isinstance(value, frozenset) else "set"


def _encode_int(value: int) -> Json:
    return value if abs(value) < _INT_PLAIN_MAX else {"int": hex(value)}


def _encode_mapping(value: Mapping[Any, Any], encode_other: EncodeOther, path: Path) -> Json:
    kind = "counter" if isinstance(value, Counter) else "ordered" if isinstance(value, OrderedDict) else "dict"
    return {
        kind: [
            [
                key if type(key) is str else encode_tree(key, encode_other, (*path, "a key")),
                encode_tree(item, encode_other, (*path, key)),
            ]
            for key, item in value.items()
        ]
    }


def decode_tree(node: Json, decode_other: DecodeOther, depth: int = 0) -> Any:
    """
    The state that `encode_tree` wrote.

    Raises:
        CheckpointDamaged
    """
    if depth > DEPTH_MAX + 2:
        raise CheckpointDamaged(f"the checkpoint's state is nested more than {DEPTH_MAX} levels deep")
    if node is None or type(node) in (bool, int, float, str):
        return node
    if type(node) is list:
        return [decode_tree(item, decode_other, depth + 1) for item in node]
    if type(node) is not dict or len(node) != 1:
        raise CheckpointDamaged("the checkpoint's state holds something of no known kind")
    [(kind, content)] = node.items()
    try:
        if kind in _MAPPINGS:
            return _MAPPINGS[kind](_decode_items(content, decode_other, depth + 1))
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](decode_tree(item, decode_other, depth + 1) for item in _listed(content))
        if kind in _SCALARS:
            return _SCALARS[kind](content)
    except (TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise CheckpointDamaged(f"the checkpoint's state holds a malformed {kind!r}") from error
    return decode_other(kind, content)


def _decode_items(content: Json, decode_other: DecodeOther, depth: int) -> list[tuple[Any, Any]]:
    items = []
    for pair in _listed(content):
        key, item = _listed(pair)
        items.append((decode_tree(key, decode_other, depth), decode_tree(item, decode_other, depth)))
    return items


def _listed(content: Json) -> list[Json]:
    if type(content) is not list:
        raise TypeError("not a list")
    return content


def _text(content: Json) -> str:
    if type(content) is not str:
        raise TypeError("not a text")
    return content


def _decode_float(content: Json) -> float:
    value = float(_text(content))
    if math.isfinite(value):
        raise ValueError("a finite float stands for itself")
    return value


def _decode_counter(items: list[tuple[Any, Any]]) -> Counter[Any]:
    counter: Counter[Any] = Counter()
    for key, count in items:
        counter[key] = count
    return counter


_MAPPINGS: dict[str, Callable[[list[tuple[Any, Any]]], Any]] = {
    "dict": dict, "ordered": OrderedDict, "counter": _decode_counter,
}  # fmt: skip
_SEQUENCES: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_SCALARS: dict[str, Callable[[Json], Any]] = {
    "float": _decode_float,
    "int": lambda content: int(_text(content), 16),
    "complex": lambda content: complex(*(float(_text(part)) for part in _listed(content))),
    "bytes": lambda content: base64.b64decode(_text(content), validate=True),
    "path": lambda content: PurePath(_text(content)),
}
