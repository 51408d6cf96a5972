"""
A checkpoint image as objects: parts of at most 16 MiB, then a manifest that names them.

    PREFIX/part-0000 … part-NNNN     the image, cut
    PREFIX/manifest.json             sizes and sha256 of the parts; its own sha256 goes into the ledger

Each object is compared with what was stored, by the store's own checksum or by reading it back (protocol 21). Nothing
here makes a checkpoint exist: that is the ledger's entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from spotrun.checkpoint.layout import ALIGNMENT, aligned
from spotrun.errors import StoreError, StoreUnavailable
from spotrun.retrying import through_faults
from spotrun.store import Store

PART_MAX_BYTES = 16 << 20
SMALL_BYTES = 4 << 20
"""Up to here one part; above at least four, which travel side by side."""
PARTS_MIN = 4
UPLOADERS, UPLOADERS_IN_A_HURRY = 2, 8
"""Parts that travel side by side: few while training wants the processor, more once a notice has come."""
NICENESS, NICENESS_MAX = 10, 19
"""Of the threads that send, beyond that of the process: training goes first."""
RETRY_FOR_S = 60.0
"""System time, for each object."""

Sent = Callable[[int], None]


class Abandoned(Exception):
    """The upload was called off."""


class UploadControl:
    """What may be asked of an upload under way, from another thread."""

    def __init__(self) -> None:
        self.slots = threading.Semaphore(UPLOADERS)
        self._cancelled = threading.Event()
        self._hurried = False
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self._senders: list[int] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """It ends after the parts that are travelling, with Abandoned."""
        self._cancelled.set()

    def hurry(self) -> None:
        """It takes as much of the line and of the processor as it can get, from now on."""
        if self._hurried:
            return
        self._hurried = True
        self.slots.release(UPLOADERS_IN_A_HURRY - UPLOADERS)
        for sender in self._senders:
            self._come_forward(sender)

    def stand_behind(self) -> None:
        """Called by each thread that sends: training goes first, unless there is a hurry."""
        sender = threading.get_native_id()  # to Linux each thread has a priority of its own
        self._senders.append(sender)
        os.setpriority(os.PRIO_PROCESS, sender, min(self._niceness + NICENESS, NICENESS_MAX))
        if self._hurried:
            self._come_forward(sender)

    def _come_forward(self, sender: int) -> None:
        with contextlib.suppress(PermissionError, ProcessLookupError):  # not every user may; training stops soon anyway
            os.setpriority(os.PRIO_PROCESS, sender, self._niceness)


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name` is relative to the checkpoint's prefix."""

    name: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parts in order, one after the other without gaps, and the image's own meta."""

    format: int
    size_bytes: int
    parts: tuple[Part, ...]
    meta: dict[str, Any] = {}


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    manifest_sha256: str
    size_bytes: int
    objects: int


def manifest_key(prefix: str) -> str:
    return f"{prefix}/manifest.json"


def part_key(prefix: str, name: str) -> str:
    return f"{prefix}/{name}"


def cut(size_bytes: int) -> list[tuple[int, int]]:
    """(start, size) of each part."""
    count = max(-(-size_bytes // PART_MAX_BYTES), PARTS_MIN if size_bytes > SMALL_BYTES else 1)
    stride = min(max(ALIGNMENT, aligned(-(-size_bytes // count))), PART_MAX_BYTES)
    return [(start, min(stride, size_bytes - start)) for start in range(0, size_bytes, stride)]


def upload(
    store: Store,
    prefix: str,
    image: memoryview,
    meta: dict[str, Any],
    *,
    sent: Sent = lambda _: None,
    control: UploadControl | None = None,
    retry_for_s: float = RETRY_FOR_S,
) -> Uploaded:
    """
    Every byte of `image` below `prefix`, compared with what the store holds. `sent` is told the bytes done so far after
    each part.

    Raises:
        StoreError: it is not whole; remove it (`discard`) and try another time.
        Abandoned: it was cancelled.
    """
    sending = _Sending(store, prefix, image, sent, control or UploadControl(), retry_for_s)
    parts = sending.parts()
    manifest = Manifest(format=1, size_bytes=len(image), parts=parts, meta=meta)
    data = msgspec.json.encode(manifest)
    sending.put_verified(manifest_key(prefix), memoryview(data))
    return Uploaded(
        manifest_sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(image), objects=len(manifest.parts) + 1
    )


class _Sending:
    def __init__(
        self, store: Store, prefix: str, image: memoryview, sent: Sent, control: UploadControl, retry_for_s: float
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._image = image
        self._sent = sent
        self._control = control
        self._retry_for_s = retry_for_s
        self._lock = threading.Lock()
        self._sent_bytes = 0

    def parts(self) -> tuple[Part, ...]:
        self._sent(0)
        behind = self._control.stand_behind
        with ThreadPoolExecutor(UPLOADERS_IN_A_HURRY, "upload", initializer=behind) as pool:
            try:
                return tuple(pool.map(self._part, *zip(*enumerate(cut(len(self._image))), strict=True)))
            except BaseException:
                self._control.cancel()  # for the other parts
                pool.shutdown(cancel_futures=True)
                raise

    def _part(self, number: int, extent: tuple[int, int]) -> Part:
        start, size_bytes = extent
        name = f"part-{number:04d}"
        with self._control.slots, self._image[start : start + size_bytes] as piece:
            sha256 = self.put_verified(part_key(self._prefix, name), piece)
        with self._lock:
            self._sent_bytes += size_bytes
            self._sent(self._sent_bytes)
        return Part(name=name, size_bytes=size_bytes, sha256=sha256)

    def put_verified(self, key: str, data: memoryview) -> str:
        """The sha256 of `data`, which is what the store holds now."""
        sha256 = hashlib.sha256(data)
        for attempt in through_faults(self._retry_for_s):
            with attempt:
                if self._control.cancelled:
                    raise Abandoned
                if not self._store.put(key, data, sha256.digest()):
                    self._read_back(key, sha256.hexdigest())
        return sha256.hexdigest()

    def _read_back(self, key: str, sha256: str) -> None:
        if hashlib.sha256(self._store.get(key)).hexdigest() != sha256:
            raise StoreUnavailable(f"{key} reads back otherwise than it was written")


def discard(store: Store, prefix: str) -> None:
    """
    Delete every object below `prefix`; what a passing fault leaves is swept later.

    Only for a prefix that was never committed, or whose commit is retired.
    """
    try:
        for stored in store.list(f"{prefix}/"):
            store.delete(stored.key)
    except StoreError:
        return
