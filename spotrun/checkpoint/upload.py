"""
Uploads a checkpoint image as objects: parts of at most 16 MiB, then the manifest that names them (manifest.py).

The stored bytes of each object are compared with the sent bytes, by the store's checksum or by reading the object back
(protocol 21). The upload becomes a commit only when it is entered in the ledger.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import msgspec
from blake3 import blake3

from spotrun.checkpoint.layout import ALIGNMENT, aligned
from spotrun.checkpoint.manifest import FORMAT, Extent, Manifest, Part, manifest_key, part_key
from spotrun.checkpoint.unchanged import BorrowedParts, Piece, missing
from spotrun.errors import StoreError, StoreUnavailable
from spotrun.store.port import Store
from spotrun.store.retrying import through_faults

PART_MAX_BYTES = 16 << 20
SMALL_BYTES = 4 << 20
"""
Images of at most this size are sent as one part. A larger image has at least `PARTS_MIN` parts, which are sent in
parallel.
"""
PARTS_MIN = 4
UPLOADERS, UPLOADERS_IN_A_HURRY = 2, 8
"""
Number of parts that are sent in parallel. The first number applies normally, because training needs the CPU; the second
applies after a notice, because time is short.
"""
NICENESS, NICENESS_MAX = 10, 19
"""
`NICENESS` is added to the process's niceness for the threads that send, so that training has priority over them.
`NICENESS_MAX` is the maximum on Linux.
"""
RETRY_FOR_S = 60.0
"""Maximum system time in seconds for retries of one object."""

Sent = Callable[[int], None]


class Abandoned(Exception):
    """Raised by an upload that was cancelled."""


class UploadControl:
    """Cancels or speeds up an upload from another thread."""

    def __init__(self) -> None:
        self.slots = threading.Semaphore(UPLOADERS)
        self._cancelled = threading.Event()
        self._hurried = False
        self._forward = False
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self._senders: list[int] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def hurried(self) -> bool:
        return self._hurried

    def cancel(self) -> None:
        """Make the upload raise Abandoned when the parts that are in progress have been sent."""
        self._cancelled.set()

    def hurry(self) -> None:
        """Send more parts in parallel, and stop giving training priority over sending."""
        if self._hurried:
            return
        self._hurried = True
        self.slots.release(UPLOADERS_IN_A_HURRY - UPLOADERS)
        self.come_forward()

    @property
    def forward(self) -> bool:
        return self._forward

    def come_forward(self) -> None:
        """Stop giving training priority over sending."""
        if self._forward:
            return
        self._forward = True
        for sender in self._senders:
            self._bring_forward(sender)

    def stand_behind(self) -> None:
        """
        Lower the priority of the calling thread, which sends parts, below that of the training, unless
        `come_forward` was called.
        """
        sender = threading.get_native_id()  # Linux has priorities per thread
        self._senders.append(sender)
        os.setpriority(os.PRIO_PROCESS, sender, min(self._niceness + NICENESS, NICENESS_MAX))
        if self._forward:
            self._bring_forward(sender)

    def _bring_forward(self, sender: int) -> None:
        with contextlib.suppress(PermissionError, ProcessLookupError):  # denied to some users; training ends soon
            os.setpriority(os.PRIO_PROCESS, sender, self._niceness)


class First(msgspec.Struct, frozen=True):
    """A range of the image that is sent before all other bytes. `then` is called when the store holds the range."""

    of: range
    then: Callable[[], None]

    def concerns(self, pieces: Sequence[Piece]) -> bool:
        return any(start < self.of.stop and start + size > self.of.start for start, size in pieces)


NOTHING_FIRST = First(range(0), lambda: None)


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an upload. `objects` and `sent_bytes` do not count borrowed parts."""

    manifest: Manifest
    manifest_blake3: str
    objects: int
    sent_bytes: int


def cut(size_bytes: int) -> list[tuple[int, int]]:
    """Return (start, size) of each part of an image."""
    count = max(-(-size_bytes // PART_MAX_BYTES), PARTS_MIN if size_bytes > SMALL_BYTES else 1)
    stride = min(max(ALIGNMENT, aligned(-(-size_bytes // count))), PART_MAX_BYTES)
    return [(start, min(stride, size_bytes - start)) for start in range(0, size_bytes, stride)]


def pack(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Distribute the pieces of an image over parts, in order. A piece that does not fit in one part is split."""
    starts = list(accumulate((size for _, size in pieces), initial=0))
    parts = []
    for begin, size_bytes in cut(starts[-1]):
        overlaps = [
            (piece + max(begin, at) - at, min(begin + size_bytes, at + size) - max(begin, at))
            for at, (piece, size) in zip(starts, pieces, strict=False)
        ]
        parts.append([(start, size) for start, size in overlaps if size > 0])
    return parts


def upload(
    store: Store,
    prefix: str,
    image: memoryview,
    meta: dict[str, Any],
    *,
    begin_bytes: int | None = None,
    borrowed: BorrowedParts | None = None,
    first: First = NOTHING_FIRST,
    sent: Sent = lambda _: None,
    control: UploadControl | None = None,
    retry_for_s: float = RETRY_FOR_S,
) -> Uploaded:
    """
    Upload `image` to objects below `prefix`, except the bytes that are `borrowed`, and verify the stored bytes. After
    each part, `sent` is called with the number of the image's bytes that are in the store.

    Raises:
        StoreError: the upload is incomplete; remove it (`discard`) and try again later.
        Abandoned: the upload was cancelled.
    """
    borrowed = borrowed or BorrowedParts()
    contents = pack(list(missing(len(image), borrowed.extents)))
    sending = _Sending(store, prefix, image, borrowed.size_bytes, sent, control or UploadControl(), retry_for_s)
    parts = sending.parts(contents, first)
    manifest = Manifest(
        format=FORMAT,
        size_bytes=len(image),
        parts=(*borrowed.parts, *parts),
        meta=meta,
        extents=(*borrowed.extents, *_places(contents, len(borrowed.parts))) if borrowed.parts else (),
        begin_bytes=begin_bytes,
    )
    data = msgspec.json.encode(manifest)
    manifest_blake3 = sending.put_verified(manifest_key(prefix), memoryview(data))
    return Uploaded(
        manifest=manifest,
        manifest_blake3=manifest_blake3,
        objects=len(parts) + 1,
        sent_bytes=sum(part.size_bytes for part in parts) + len(data),
    )


def _places(contents: Sequence[Sequence[Piece]], first: int) -> list[Extent]:
    """
    Return the place of each piece: its part's number, its offset in the part, and its offset in the image. `first` is
    the number of the first part.
    """
    places = []
    for number, pieces in enumerate(contents, first):
        starts = accumulate((size for _, size in pieces), initial=0)
        places += [Extent(number, at, start, size) for at, (start, size) in zip(starts, pieces, strict=False)]
    return places


class _Sending:
    def __init__(
        self,
        store: Store,
        prefix: str,
        image: memoryview,
        there_bytes: int,
        sent: Sent,
        control: UploadControl,
        retry_for_s: float,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._image = image
        self._sent = sent
        self._control = control
        self._retry_for_s = retry_for_s
        self._lock = threading.Lock()
        self._there_bytes = there_bytes

    def parts(self, contents: Sequence[Sequence[Piece]], first: First) -> tuple[Part, ...]:
        self._sent(self._there_bytes)
        early = {number for number, pieces in enumerate(contents) if first.concerns(pieces)}
        order = sorted(range(len(contents)), key=lambda number: number not in early)
        behind = self._control.stand_behind
        with ThreadPoolExecutor(UPLOADERS_IN_A_HURRY, "upload", initializer=behind) as pool:
            try:
                coming: dict[int, Future[Part]] = {number: Future() for number in order}
                turns = iter(coming.items())
                for _ in coming:
                    pool.submit(self._next_part, turns, contents)
                for number in early:
                    coming[number].result()
                first.then()
                return tuple(coming[number].result() for number in range(len(contents)))
            except BaseException:
                self._control.cancel()  # ends the other parts
                pool.shutdown(cancel_futures=True)
                raise

    def _next_part(self, turns: Iterator[tuple[int, Future[Part]]], contents: Sequence[Sequence[Piece]]) -> None:
        """
        Send the next part. Parts have to be sent in order, but the semaphore does not serve waiting threads in order.
        So a thread first waits for a slot, and only then takes the next part.
        """
        with self._control.slots:
            with self._lock:
                number, coming = next(turns)
            try:
                coming.set_result(self._part(number, contents[number]))
            except BaseException as error:  # noqa: BLE001  (the thread that waits for the part raises it)
                coming.set_exception(error)

    def _part(self, number: int, pieces: Sequence[Piece]) -> Part:
        size_bytes = sum(size for _, size in pieces)
        name = f"part-{number:04d}"
        with self._gathered(pieces) as data:
            digest = self.put_verified(part_key(self._prefix, name), data)
        with self._lock:
            self._there_bytes += size_bytes
            self._sent(self._there_bytes)
        return Part(name=name, size_bytes=size_bytes, blake3=digest)

    def _gathered(self, pieces: Sequence[Piece]) -> memoryview:
        """Return the joined bytes of the pieces. A single piece is not copied."""
        if len(pieces) == 1:
            ((start, size_bytes),) = pieces
            return self._image[start : start + size_bytes]
        data = bytearray()
        for start, size_bytes in pieces:
            with self._image[start : start + size_bytes] as piece:
                data += piece
        return memoryview(data)

    def put_verified(self, key: str, data: memoryview) -> str:
        return put_verified(self._store, key, data, self._refuse_if_cancelled, retry_for_s=self._retry_for_s)

    def _refuse_if_cancelled(self) -> None:
        if self._control.cancelled:
            raise Abandoned


def put_verified(
    store: Store, key: str, data: memoryview, before_each_try: Callable[[], None], *, retry_for_s: float = RETRY_FOR_S
) -> str:
    """
    Store `data`, compare the stored bytes, and return the BLAKE3 digest.

    Raises:
        StoreError: `data` could not be stored.
    """
    digest = blake3(data).hexdigest()
    for attempt in through_faults(retry_for_s):
        with attempt:
            before_each_try()
            if not store.put(key, data) and blake3(store.get(key)).hexdigest() != digest:
                raise StoreUnavailable(f"the stored bytes of {key} differ from the bytes sent")
    return digest


def discard(store: Store, prefix: str) -> None:
    """
    Delete every object below `prefix`, which must be the prefix of an upload that was never committed, or of a retired
    commit. If the store fails, objects may remain; a later cleanup deletes them.
    """
    try:
        for stored in store.list(f"{prefix}/"):
            store.delete(stored.key)
    except StoreError:
        return
