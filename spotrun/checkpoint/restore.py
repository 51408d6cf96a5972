"""Reads the image of a committed checkpoint into memory, and compares every byte with the digests in the ledger."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shlex import quote
from typing import Protocol

import msgspec
from blake3 import blake3

from spotrun.checkpoint import unchanged
from spotrun.checkpoint.manifest import Extent, Manifest, Part, manifest_key
from spotrun.errors import CheckpointDamaged, ObjectMissing, StoreError
from spotrun.run.bounds import OutOfBounds, decode
from spotrun.run.events import CheckpointCommitted
from spotrun.run.state import Commit
from spotrun.store.port import InPieces, Store
from spotrun.store.retrying import through_faults
from spotrun.units import count_of

READERS = 8
"""Maximum number of objects that are read in parallel."""
READS_MAX = 5
"""
Maximum number of times that an object is read. A read may return wrong bytes because of an error in transit; such
errors differ each time. So if two reads return the same wrong bytes, the stored object itself is damaged (protocol 22),
and there are no more reads.
"""
RETRY_FOR_S = 300.0
"""Maximum system time in seconds for retries of one object."""
MANIFEST_MAX_BYTES = 64 << 20
"""
Maximum size of a manifest. A larger manifest is not read, because the process that wrote it is not trusted and could
otherwise fill the reader's memory. A manifest of this size describes more than 8 TB in parts of 16 MiB.
"""


class Image(msgspec.Struct, frozen=True):
    """
    A checkpoint's image, which begins at byte `start` of the memory or file behind the descriptor `fd`. The owner of
    this object must close it.
    """

    commit: Commit
    fd: int
    start: int = 0

    @property
    def size_bytes(self) -> int:
        return self.commit.event.size_bytes

    def close(self) -> None:
        os.close(self.fd)


class Recipient(Protocol):
    """
    Uses a checkpoint while it arrives. Several threads call its methods, but never at the same time.
    """

    def begins(self, image: Image, begin_bytes: int) -> None:
        """
        Receive the image's memory, which is still empty. The first `begin_bytes` bytes will arrive before the others.
        With them, a trainer can begin its restore. If the image turns out to be damaged, this method is called again
        with an older commit's image.
        """

    def has(self, size_bytes: int) -> None:
        """Receive the news that the image's first `size_bytes` bytes have arrived and match the committed bytes."""


class NewestReadable(msgspec.Struct, frozen=True):
    """The image of the newest commit that could be read, and the numbers of the newer commits that could not."""

    image: Image
    skipped: tuple[int, ...]


def newest_readable(
    store: Store, candidates: Iterable[Commit], ready: Image | None = None, recipient: Recipient | None = None
) -> NewestReadable:
    """
    Return the newest undamaged image of `candidates`, which must be listed newest first. `ready` is the image of one
    candidate, if it was already read and is undamaged. It is closed if a newer candidate is undamaged.

    Raises:
        CheckpointDamaged: all candidates are damaged.
        StoreUnavailable: the store could not be read, so it is unknown whether the checkpoints are damaged.
    """
    skipped: list[int] = []
    reasons: list[str] = []
    for commit in candidates:
        if ready is not None and ready.commit.number == commit.number:
            return NewestReadable(ready, tuple(skipped))
        try:
            found = NewestReadable(fetch(store, commit, recipient), tuple(skipped))
        except CheckpointDamaged as damage:
            skipped.append(commit.number)
            reasons.append(damage.message)
            continue
        if ready is not None:
            ready.close()
        return found
    raise CheckpointDamaged(
        f"none of {count_of(len(skipped), 'checkpoint')} can be read back intact: {'; '.join(reasons)[:600]}",
        hint=f"`spotrun checkpoints verify {quote(store.uri)}` shows what is left; restore the objects from a backup, "
        "or launch again",
    )


def fetch(
    store: Store,
    commit: Commit,
    recipient: Recipient | None = None,
    *,
    retry_for_s: float = RETRY_FOR_S,
    disk: Path | None = None,
) -> Image:
    """
    Read the image of one commit into new memory or, if `disk` is given, into an unnamed file in that folder.

    Raises:
        CheckpointDamaged: an object is missing, or does not match its digest even when it is read again.
        StoreUnavailable: the store did not answer within the time for retries.
    """
    manifest = read_manifest(store, commit.event, retry_for_s=retry_for_s)
    fd = os.memfd_create(f"spotrun-commit-{commit.number}", os.MFD_CLOEXEC) if disk is None else _unnamed(disk)
    try:
        os.ftruncate(fd, manifest.size_bytes)
        image = Image(commit, fd)
        if recipient is not None:
            recipient.begins(image, _begin_bytes(manifest))
        _fill(store, manifest, image, recipient, retry_for_s)
    except BaseException:
        os.close(fd)
        raise
    return image


def _unnamed(folder: Path) -> int:
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())


def recognised(
    store: Store, held: Image, digest: bytes | None = None, *, retry_for_s: float = RETRY_FOR_S
) -> Image | None:
    """
    Check whether the memory of `held` still contains the image of its commit, so that the image need not be fetched. If
    so, free the memory before and after the image, and return `held`. If a byte differs, or the digests of the commit
    cannot be read, close `held` and return None. No process may still write to the memory.

    If the commit borrows from another, the caller must pass `digest`, the digest of the whole committed image (see
    `unchanged.digest`). The digests in the manifest are not enough then, because the image may contain only some bytes
    of a borrowed part.
    """
    whole = False
    try:
        whole = _is_whole(read_manifest(store, held.commit.event, retry_for_s=retry_for_s), held, digest)
        if whole:
            _give_back_what_is_around(held)
    except (CheckpointDamaged, StoreError):
        pass  # the fetch that follows meets the same error, and reports it
    finally:
        if not whole:
            held.close()
    return held if whole else None


def _is_whole(manifest: Manifest, held: Image, digest: bytes | None) -> bool:
    if os.fstat(held.fd).st_size < held.start + manifest.size_bytes:
        return False
    if manifest.extents:  # the image may hold only some bytes of a borrowed part
        with _read_only(held) as view:
            return unchanged.digest(view) == digest

    def holds(part: Part, extents: list[Extent]) -> bool:
        (extent,) = extents
        with view[extent.start : extent.start + extent.size_bytes] as piece:
            return blake3(piece).hexdigest() == part.blake3

    with (
        _read_only(held) as view,
        ThreadPoolExecutor(READERS, thread_name_prefix="recognise") as pool,
    ):
        return all(pool.map(holds, manifest.parts, manifest.placed()))


@contextlib.contextmanager
def _read_only(held: Image) -> Iterator[memoryview]:
    with (
        mmap.mmap(held.fd, held.size_bytes, prot=mmap.PROT_READ, offset=held.start) as memory,
        memoryview(memory) as view,
    ):
        yield view


def _give_back_what_is_around(held: Image) -> None:
    os.ftruncate(held.fd, held.start + held.size_bytes)
    if held.start:
        with mmap.mmap(held.fd, held.start) as before:
            before.madvise(mmap.MADV_REMOVE)


def verify(store: Store, commit: Commit, *, retry_for_s: float = RETRY_FOR_S) -> None:
    """
    Read a complete checkpoint and compare it with its digests. At most one part is in memory at a time. Raises the
    same errors as `fetch`.
    """
    manifest = read_manifest(store, commit.event, retry_for_s=retry_for_s)
    for part in manifest.parts:
        key = part.key(commit.event.prefix)
        read_verified(store, key, part.blake3, part.size_bytes, lambda at, piece: None, retry_for_s)


def read_manifest(store: Store, event: CheckpointCommitted, *, retry_for_s: float = RETRY_FOR_S) -> Manifest:
    data = bytearray()

    def take(at: int, piece: memoryview) -> None:
        data[at:] = piece

    read_verified(store, manifest_key(event.prefix), event.manifest_blake3, None, take, retry_for_s)
    try:
        manifest = decode(data, Manifest)
    except OutOfBounds as error:
        raise CheckpointDamaged(f"{event.prefix} has a manifest that cannot be read: {error}") from error
    flaw = manifest.flaw(event.borrows)
    if flaw is None and manifest.size_bytes != event.size_bytes:
        flaw = f"its manifest describes {manifest.size_bytes} bytes, but the ledger {event.size_bytes}"
    if flaw is not None:
        raise CheckpointDamaged(f"{event.prefix}: {flaw}")
    return manifest


class _Front:
    """Tracks how many bytes from the start of an image have arrived without a gap. Parts may arrive in any order."""

    def __init__(self, starts: Sequence[int], size_bytes: int, recipient: Recipient) -> None:
        """Track the parts of one image, which begin at the offsets `starts`."""
        self._starts = starts
        self._order = sorted(range(len(starts)), key=starts.__getitem__, reverse=True)
        self._missing = set(self._order)
        self._size_bytes = size_bytes
        self._recipient = recipient
        self._lock = threading.Lock()

    def came(self, number: int) -> None:
        with self._lock:
            self._missing.discard(number)
            if number != self._order[-1]:
                return
            while self._order and self._order[-1] not in self._missing:
                self._order.pop()
            self._recipient.has(self._starts[self._order[-1]] if self._order else self._size_bytes)


def _fill(store: Store, manifest: Manifest, image: Image, recipient: Recipient | None, retry_for_s: float) -> None:
    prefix, fd = image.commit.event.prefix, image.fd
    placed = manifest.placed()
    starts = [min((extent.start for extent in extents), default=manifest.size_bytes) for extents in placed]
    front = None if recipient is None else _Front(starts, manifest.size_bytes, recipient)

    def fill(number: int) -> None:
        part, extents = manifest.parts[number], placed[number]

        def take(at: int, piece: memoryview) -> None:
            for extent in extents:
                first, last = max(at, extent.at), min(at + len(piece), extent.at + extent.size_bytes)
                if first < last:
                    _write_all(fd, piece[first - at : last - at], extent.start + first - extent.at)

        read_verified(store, part.key(prefix), part.blake3, part.size_bytes, take, retry_for_s)
        if front is not None:
            front.came(number)

    with ThreadPoolExecutor(READERS, thread_name_prefix="restore") as pool:
        for together in _in_order(starts, _begin_bytes(manifest)):
            list(pool.map(fill, together))


def _begin_bytes(manifest: Manifest) -> int:
    return manifest.size_bytes if manifest.begin_bytes is None else manifest.begin_bytes


def _in_order(starts: Sequence[int], begin_bytes: int) -> tuple[list[int], list[int]]:
    """
    Return two lists of part numbers: the parts that hold the first `begin_bytes` bytes, and the other parts.

    No reader begins with the second list before the first list is complete. Otherwise, idle readers would take
    bandwidth from the readers of the first list.
    """
    first = [number for number, start in enumerate(starts) if start < begin_bytes]
    later = [number for number, start in enumerate(starts) if start >= begin_bytes]
    return first, later


def _write_all(fd: int, data: memoryview, start: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], start + written)


Take = Callable[[int, memoryview], None]
"""
Called with the position and the bytes of each piece of an object. If the object arrives damaged, it is read again, and
the function is called again for all of its pieces.
"""


def read_verified(store: Store, key: str, digest: str, size_bytes: int | None, take: Take, retry_for_s: float) -> None:
    """
    Read an object and pass its pieces to `take` as they arrive. If the bytes turn out to be wrong, read the whole
    object again, and pass all of its pieces again. The last piece that `take` gets for each position is correct.

    Raises:
        CheckpointDamaged: the object is missing, or does not match `digest` (hexadecimal BLAKE3).
        StoreUnavailable: the store did not answer within the time for retries.
    """
    read_bytes = MANIFEST_MAX_BYTES if size_bytes is None else size_bytes + 1
    seen: dict[str, int] = {}
    for _ in range(READS_MAX):
        found, found_bytes = _read(store, key, read_bytes, take, retry_for_s)
        if found == digest and size_bytes in (None, found_bytes):
            return
        if found in seen:
            break
        seen[found] = found_bytes
    sizes = ", ".join(f"{size:,}" for size in seen.values())
    raise CheckpointDamaged(f"{key} differs from what was committed, even when read again (bytes read: {sizes})")


def _read(store: Store, key: str, size_bytes: int, take: Take, retry_for_s: float) -> tuple[str, int]:
    """
    Read the object once and pass its pieces to `take`. Return the BLAKE3 digest and the size of the bytes that were
    read.
    """

    def once() -> tuple[str, int]:
        digest, at = blake3(), 0
        for piece in _pieces(store, key, size_bytes):
            digest.update(piece)
            take(at, memoryview(piece))
            at += len(piece)
        return digest.hexdigest(), at

    try:
        return through_faults(retry_for_s)(once)
    except ObjectMissing as error:
        raise CheckpointDamaged(f"{key} is missing") from error


def _pieces(store: Store, key: str, size_bytes: int) -> Iterator[bytes]:
    return store.pieces(key, size_bytes) if isinstance(store, InPieces) else iter((store.get(key, 0, size_bytes),))
