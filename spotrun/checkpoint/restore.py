"""
A committed checkpoint's image back in memory, every byte compared with what the ledger vouches for.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from spotrun.checkpoint.manifest import Extent, Manifest, Part, manifest_key
from spotrun.errors import CheckpointDamaged, ObjectMissing, StoreError
from spotrun.events import CheckpointCommitted
from spotrun.retrying import through_faults
from spotrun.state import Commit
from spotrun.store import Store

READERS = 4
READS_MAX = 5
"""
Two mismatches condemn an object (protocol 22) if they are the same: what changes on the way comes otherwise each time.
"""
RETRY_FOR_S = 300.0
"""System time, for each object."""
MANIFEST_MAX_BYTES = 64 << 20
"""Parts of 16 MiB for a checkpoint of more than 8 TB. Nobody is trusted to have put no more there."""


class Image(msgspec.Struct, frozen=True):
    """A checkpoint's image in the memory behind `fd`, which its owner closes."""

    commit: Commit
    fd: int

    @property
    def size_bytes(self) -> int:
        return self.commit.event.size_bytes

    def close(self) -> None:
        os.close(self.fd)


class Found(msgspec.Struct, frozen=True):
    """The newest commit that could be read, and the newer ones that could not."""

    image: Image
    skipped: tuple[int, ...]


def newest_readable(store: Store, candidates: Iterable[Commit], ready: Image | None = None) -> Found:
    """
    Walk back from the newest of `candidates` to one that is whole. `ready` is whole, and used or closed.

    Raises:
        CheckpointDamaged: none is whole.
        StoreUnavailable: the store could not be read; nothing is known about the checkpoints.
    """
    skipped: list[int] = []
    reasons: list[str] = []
    for commit in candidates:
        if ready is not None and ready.commit.number == commit.number:
            return Found(ready, tuple(skipped))
        try:
            found = Found(fetch(store, commit), tuple(skipped))
        except CheckpointDamaged as damage:
            skipped.append(commit.number)
            reasons.append(damage.message)
            continue
        if ready is not None:
            ready.close()
        return found
    raise CheckpointDamaged(
        f"none of {len(skipped)} checkpoints can be read back whole: {'; '.join(reasons)[:600]}",
        hint="`spotrun checkpoints verify RUN` shows what is left; restore the objects from a backup, or launch anew",
    )


def fetch(store: Store, commit: Commit, *, retry_for_s: float = RETRY_FOR_S) -> Image:
    """
    The image of one commit, in memory of its own.

    Raises:
        CheckpointDamaged: an object is missing, or differs twice from what the ledger says.
        StoreUnavailable: a fault that did not pass.
    """
    manifest = read_manifest(store, commit.event, retry_for_s=retry_for_s)
    fd = os.memfd_create(f"spotrun-commit-{commit.number}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, manifest.size_bytes)
        _fill(store, commit.event.prefix, manifest, fd, retry_for_s)
    except BaseException:
        os.close(fd)
        raise
    return Image(commit, fd)


def recognised(store: Store, commit: Commit, fd: int, *, retry_for_s: float = RETRY_FOR_S) -> Image | None:
    """
    The memory behind `fd` as the image of `commit`: None where a single byte is not what the ledger vouches for, or
    that cannot be told. Whoever had written to it must be gone; it becomes the image's, or is closed.
    """
    whole = False
    try:
        whole = _is_whole(read_manifest(store, commit.event, retry_for_s=retry_for_s), fd)
    except (CheckpointDamaged, StoreError):
        pass  # a fetch meets the same, and tells it
    finally:
        if not whole:
            os.close(fd)
    return Image(commit, fd) if whole else None


def _is_whole(manifest: Manifest, fd: int) -> bool:
    if manifest.extents or os.fstat(fd).st_size < manifest.size_bytes:
        return False  # of a part that was borrowed, only some bytes are in the image

    def holds(part: Part, extents: list[Extent]) -> bool:
        (extent,) = extents
        with view[extent.start : extent.start + extent.size_bytes] as piece:
            return hashlib.sha256(piece).hexdigest() == part.sha256

    with (
        mmap.mmap(fd, manifest.size_bytes, prot=mmap.PROT_READ) as memory,
        memoryview(memory) as view,
        ThreadPoolExecutor(READERS, thread_name_prefix="recognise") as pool,
    ):
        return all(pool.map(holds, manifest.parts, manifest.placed()))


def verify(store: Store, commit: Commit, *, retry_for_s: float = RETRY_FOR_S) -> None:
    """Read a whole checkpoint and compare. Raises what `fetch` raises; keeps one part in memory at a time."""
    manifest = read_manifest(store, commit.event, retry_for_s=retry_for_s)
    for part in manifest.parts:
        key = part.key(commit.event.prefix)
        _read_verified(store, key, part.sha256, part.size_bytes, retry_for_s)


def read_manifest(store: Store, event: CheckpointCommitted, *, retry_for_s: float = RETRY_FOR_S) -> Manifest:
    data = _read_verified(store, manifest_key(event.prefix), event.manifest_sha256, None, retry_for_s)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointDamaged(f"{event.prefix} has a manifest that cannot be read: {error}") from error
    flaw = manifest.flaw(event.borrows)
    if flaw is None and manifest.size_bytes != event.size_bytes:
        flaw = f"its manifest is of {manifest.size_bytes} bytes, not {event.size_bytes}"
    if flaw is not None:
        raise CheckpointDamaged(f"{event.prefix}: {flaw}")
    return manifest


def _fill(store: Store, prefix: str, manifest: Manifest, fd: int, retry_for_s: float) -> None:
    def fill(part: Part, extents: list[Extent]) -> None:
        data = memoryview(_read_verified(store, part.key(prefix), part.sha256, part.size_bytes, retry_for_s))
        for extent in extents:
            _write_all(fd, data[extent.at : extent.at + extent.size_bytes], extent.start)

    with ThreadPoolExecutor(READERS, thread_name_prefix="restore") as pool:
        list(pool.map(fill, manifest.parts, manifest.placed()))


def _write_all(fd: int, data: memoryview, start: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], start + written)


def _read_verified(store: Store, key: str, sha256: str, size_bytes: int | None, retry_for_s: float) -> bytes:
    read_bytes = MANIFEST_MAX_BYTES if size_bytes is None else size_bytes + 1
    seen: dict[str, int] = {}
    for _ in range(READS_MAX):
        data = _get(store, key, read_bytes, retry_for_s)
        found = hashlib.sha256(data).hexdigest()
        if found == sha256 and size_bytes in (None, len(data)):
            return data
        if found in seen:
            break
        seen[found] = len(data)
    sizes = ", ".join(f"{size:,}" for size in seen.values())
    raise CheckpointDamaged(f"{key} is not what was committed (read more than once: {sizes} bytes)")


def _get(store: Store, key: str, size_bytes: int, retry_for_s: float) -> bytes:
    try:
        return through_faults(retry_for_s)(store.get, key, 0, size_bytes)
    except ObjectMissing as error:
        raise CheckpointDamaged(f"{key} is missing") from error
