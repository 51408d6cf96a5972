"""
Finds tensors that need not be sent because an earlier commit of the same attempt has the same bytes.

If most of a model's weights do not change in training, most bytes are the same in all of its checkpoints. A commit
*borrows* the stored objects that hold these bytes from the last commit that was sent completely. Only the other tensors
are sent. The earlier commit stays in the store as long as later commits need it (retention.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import xxhash

from spotrun.checkpoint import layout
from spotrun.checkpoint.manifest import Extent, Manifest, Part

SHARE_MIN = 0.25
"""Minimum share of an image that a commit must be able to borrow. If it can borrow less, it is sent whole."""
FRUITLESS_MAX = 3
"""
After this many comparisons in a row that found too little to borrow, images are no longer compared. A comparison takes
a tenth of the time that sending the image takes.
"""

Piece = tuple[int, int]
"""The start and the size, in bytes, of a range of an image."""


@dataclass(frozen=True)
class BorrowedParts:
    """Parts of an earlier commit, and the ranges of a new image that consist of bytes from these parts."""

    parts: tuple[Part, ...] = ()
    extents: tuple[Extent, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)


@dataclass(frozen=True)
class _Whole:
    """
    A commit that was sent completely. `begins` contains the start of each part in the image and, as the last item, the
    size of the image. `tensors` maps the digest of each tensor to the tensor's position and size in the image.
    """

    prefix: str
    parts: tuple[Part, ...]
    begins: tuple[int, ...]
    tensors: dict[bytes, Piece]


class Unchanged:
    """Remembers the tensors of the last commit that was sent completely. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._whole: _Whole | None = None
        self._fruitless = 0
        self._seen: list[tuple[bytes, Piece]] = []

    def in_store(self, image: memoryview, header: layout.Header, kept: Iterable[str]) -> BorrowedParts:
        """
        Return the parts of an earlier commit that contain bytes of `image`. These bytes need not be sent. `kept`
        contains the prefixes of the commits that parts may come from: those that are usable and not retired.
        """
        if self._fruitless >= FRUITLESS_MAX:
            return BorrowedParts()
        self._seen = _tensors(image, header)
        whole = self._whole
        if whole is None or whole.prefix not in kept:
            return BorrowedParts()
        found = _borrow(whole, self._seen)
        worth = found.size_bytes >= SHARE_MIN * len(image)
        self._fruitless = 0 if worth else self._fruitless + 1
        return found if worth else BorrowedParts()

    def committed(self, prefix: str, manifest: Manifest) -> None:
        """
        Record that the last image that was passed to `in_store` has become the commit at `prefix`. Later commits can
        borrow from this commit if its image was sent completely.
        """
        if manifest.extents or self._fruitless >= FRUITLESS_MAX:
            return
        placed = [extent.start for (extent,) in manifest.placed()]
        parts = tuple(msgspec.structs.replace(part, of=prefix) for part in manifest.parts)
        self._whole = _Whole(prefix, parts, (*placed, manifest.size_bytes), dict(self._seen))


def digest(image: memoryview) -> bytes:
    """
    Return the digest of a complete image. Only a commit that borrows needs it: its image may contain only some bytes of
    a borrowed part, and the digests in the manifest are those of complete parts.
    """
    return xxhash.xxh3_128_digest(image)


def missing(size_bytes: int, extents: Iterable[Extent]) -> Iterator[Piece]:
    """Yield the pieces of an image of `size_bytes` that no extent covers."""
    end = 0
    for extent in sorted(extents, key=lambda extent: extent.start):
        if extent.start > end:
            yield end, extent.start - end
        end = extent.start + extent.size_bytes
    if end < size_bytes:
        yield end, size_bytes - end


def _tensors(image: memoryview, header: layout.Header) -> list[tuple[bytes, Piece]]:
    """Return the digest and the range of each tensor, in the order of the image."""
    found = []
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.offset):
        start = header.data_start + tensor.offset
        with image[start : start + tensor.size_bytes] as held:
            found.append((xxhash.xxh3_128_digest(held), (start, tensor.size_bytes)))
    return found


def _borrow(whole: _Whole, tensors: list[tuple[bytes, Piece]]) -> BorrowedParts:
    extents: list[Extent] = []
    for digest, (start, size_bytes) in tensors:
        there, known_bytes = whole.tensors.get(digest, (0, 0))
        if known_bytes == size_bytes:
            extents += _cut_as_its_parts(whole, there, start, size_bytes)
    joined = _joined(extents)
    used = sorted({extent.part for extent in joined})
    renumbered = {part: number for number, part in enumerate(used)}
    return BorrowedParts(
        tuple(whole.parts[part] for part in used),
        tuple(Extent(renumbered[one.part], one.at, one.start, one.size_bytes) for one in joined),
    )


def _cut_as_its_parts(whole: _Whole, there: int, start: int, size_bytes: int) -> Iterator[Extent]:
    """
    Yield an extent for each part of the earlier commit that contains bytes of a tensor. The tensor begins at byte
    `there` of the earlier image and at byte `start` of the new image.
    """
    for part, (begin, end) in enumerate(pairwise(whole.begins)):
        first, last = max(there, begin), min(there + size_bytes, end)
        if first < last:
            yield Extent(part, first - begin, start + first - there, last - first)


def _joined(extents: Iterable[Extent]) -> list[Extent]:
    """
    Join two extents into one, including the padding between them, if they are neighbours in both the earlier and the
    new image. This keeps manifests of images with many tensors small.
    """
    joined: list[Extent] = []
    for extent in extents:
        before = joined[-1] if joined else None
        if before is not None and _follows(before, extent):
            gap = extent.start - before.start
            joined[-1] = Extent(before.part, before.at, before.start, gap + extent.size_bytes)
        else:
            joined.append(extent)
    return joined


def _follows(before: Extent, extent: Extent) -> bool:
    shift = extent.start - before.start
    padding = shift - before.size_bytes
    return extent.part == before.part and extent.at - before.at == shift and 0 <= padding < layout.ALIGNMENT
