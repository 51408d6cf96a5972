"""
Defines the format of a checkpoint image. Its bytes are the same in an arena and in the store. This module does not need
torch.

    b"SPOTRUN1" | u64 header size | header, JSON in UTF-8 | zeros | tensors

The zeros fill the header up to a multiple of 64 bytes, and each tensor begins at a multiple of 64 bytes.

    header = {"format": 1, "tensors": [{"dtype", "shape", "offset", "size_bytes"}, …], "tree": …, "meta": {…}}

`offset` counts from the start of the tensors. `tree` is the state without its tensors (tree.py).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from spotrun.checkpoint.tree import MAPPINGS, Json, tensors_in
from spotrun.errors import CheckpointDamaged
from spotrun.units import count_of
from spotrun.wire import plain

MAGIC = b"SPOTRUN1"
FORMAT = 1
ALIGNMENT = 64

ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
"""Bytes per element of the dtypes that an image may hold, by torch's names."""

_PREFIX = struct.Struct("<8sQ")
PREFIX_BYTES = _PREFIX.size
_EXTENT_MAX = 1 << 48

Buffer = bytes | bytearray | memoryview


class TensorEntry(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Header:
    """A parsed header. The tensors start `data_start` bytes after the image's first byte."""

    tensors: tuple[TensorEntry, ...]
    tree: Json
    meta: dict[str, Any]
    data_start: int

    @property
    def size_bytes(self) -> int:
        """The size of the complete image, in bytes."""
        return self.data_start + max((t.offset + t.size_bytes for t in self.tensors if t.size_bytes), default=0)


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def place(kinds: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[TensorEntry, ...]:
    """
    Return an entry for each tensor, placing the tensors one after another. `kinds` contains their dtypes and shapes.
    """
    return _place(tuple(kinds))


@lru_cache(maxsize=4)
def _place(kinds: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[TensorEntry, ...]:
    """Do the work of `place`. Its results are cached, because all snapshots of a training have the same tensors."""
    entries = []
    offset = 0
    for dtype, shape in kinds:
        size_bytes = ITEM_BYTES[dtype] * math.prod(shape)
        entries.append(TensorEntry(dtype, shape, offset, size_bytes))
        offset += aligned(size_bytes)
    return tuple(entries)


def encode_header(tensors: Sequence[TensorEntry], tree: Json, meta: Mapping[str, Any]) -> bytes:
    """Return all bytes that precede the tensors, including the padding. `meta` may be any plain JSON."""
    header = {"format": FORMAT, "tensors": _entries_json(tuple(tensors)), "tree": tree, "meta": dict(meta)}
    text = plain.encode(header)
    head = _PREFIX.pack(MAGIC, len(text)) + text
    return head.ljust(aligned(len(head)), b"\0")


@lru_cache(maxsize=4)
def _entries_json(tensors: tuple[TensorEntry, ...]) -> plain.Encoded:
    return plain.Encoded(plain.encode([entry._asdict() for entry in tensors]))


def decode_header(image: Buffer) -> Header:
    """
    Return the header of a complete image. Check that every tensor lies inside the image, overlaps no other tensor, and
    has the size that its shape needs.

    Raises:
        CheckpointDamaged: a check failed; use an older checkpoint.
    """
    header = _parse_header(image)
    if header.size_bytes > len(image):
        raise CheckpointDamaged(
            f"the checkpoint has {count_of(len(image), 'byte')}, but its header requires {header.size_bytes}"
        )
    return header


def header_end(image: Buffer) -> int:
    """
    Return the offset at which the header's JSON ends. Read only the first `PREFIX_BYTES` bytes of the image.

    Raises:
        CheckpointDamaged: the image is too short for its header, or does not begin with `MAGIC`.
    """
    if len(image) < PREFIX_BYTES:
        raise CheckpointDamaged(f"the checkpoint has {count_of(len(image), 'byte')}, which is too short for a header")
    magic, size_bytes = _PREFIX.unpack_from(image)
    if magic != MAGIC:
        raise CheckpointDamaged(f"the checkpoint begins with {magic!r} instead of {MAGIC!r}")
    end: int = PREFIX_BYTES + size_bytes
    if end > len(image):
        raise CheckpointDamaged(
            f"the checkpoint's header should end at byte {end}, but the checkpoint has only {len(image)} bytes"
        )
    return end


def begin_bytes(header: Header) -> int:
    """
    Return the number of bytes, from the start of the image, that hold all entries of the state (a mapping) except the
    last one. When they have arrived, a trainer can begin to load; it needs the last entry only later.
    """
    (kind,) = header.tree if type(header.tree) is dict and len(header.tree) == 1 else ("",)
    if kind not in MAPPINGS or type(header.tree[kind]) is not list or not header.tree[kind]:
        return header.size_bytes
    *others, last = header.tree[kind]
    if next(tensors_in(last), None) is None:
        return header.size_bytes
    # Tensors are numbered and stored in the order of the state's entries. A tensor that several entries share is stored
    # once, with the first of these entries. So the tensors that belong only to the last entry are at the end of the
    # image, and `first` is the number of the first of them.
    first = max((number for other in others for number in tensors_in(other)), default=-1) + 1
    return header.data_start + header.tensors[first].offset if first < len(header.tensors) else header.size_bytes


def _parse_header(image: Buffer) -> Header:
    end = header_end(image)
    fields = _object(_parse_json(bytes(image[PREFIX_BYTES:end])), {"format", "tensors", "tree", "meta"})
    if fields["format"] != FORMAT or type(fields["format"]) is not int:
        raise CheckpointDamaged(f"the checkpoint has format {fields['format']!r}; this spotrun reads only {FORMAT}")
    if type(fields["meta"]) is not dict or type(fields["tensors"]) is not list:
        raise CheckpointDamaged("the checkpoint's header has fields of the wrong type")
    tensors = tuple(_tensor_entry(entry) for entry in fields["tensors"])
    _check_overlaps(tensors)
    return Header(tensors, fields["tree"], fields["meta"], aligned(end))


def _parse_json(text: bytes) -> Json:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text.decode(), parse_constant=refuse)
    except (ValueError, RecursionError, MemoryError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise CheckpointDamaged("the checkpoint's header is not JSON", hint=str(error)[:200]) from error


def _object(value: Json, keys: set[str]) -> dict[str, Json]:
    if type(value) is not dict or value.keys() != keys:
        raise CheckpointDamaged(f"the checkpoint's header does not have exactly these keys: {', '.join(sorted(keys))}")
    return value


def _tensor_entry(value: Json) -> TensorEntry:
    fields = _object(value, {"dtype", "shape", "offset", "size_bytes"})
    dtype, shape, offset, size_bytes = fields["dtype"], fields["shape"], fields["offset"], fields["size_bytes"]
    if type(dtype) is not str or dtype not in ITEM_BYTES:
        raise CheckpointDamaged("the checkpoint holds a tensor of an unknown dtype")
    if type(shape) is not list or len(shape) > 64 or not all(_is_extent(extent) for extent in shape):
        raise CheckpointDamaged("the checkpoint holds a tensor with an impossible shape")
    if not (_is_extent(offset) and _is_extent(size_bytes)) or offset % ALIGNMENT:
        raise CheckpointDamaged("the checkpoint holds a tensor at an impossible offset")
    if size_bytes != ITEM_BYTES[dtype] * math.prod(shape):
        raise CheckpointDamaged("the checkpoint holds a tensor whose size does not match its shape")
    return TensorEntry(dtype, tuple(shape), offset, size_bytes)


def _is_extent(value: Json) -> bool:
    return type(value) is int and 0 <= value <= _EXTENT_MAX


def _check_overlaps(tensors: Sequence[TensorEntry]) -> None:
    end = 0
    for tensor in sorted((t for t in tensors if t.size_bytes), key=lambda t: t.offset):
        if tensor.offset < end:
            raise CheckpointDamaged("the checkpoint's header describes tensors that overlap")
        end = tensor.offset + tensor.size_bytes
