"""
Stores the script's files in pieces. The digest of a piece's content is its name in the store.

All parts of the agent send files through this module. It sends the same content only once. It also ensures that no part
of the agent deletes a piece that another part has sent and not yet named in the ledger.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from blake3 import blake3

from spotrun.agent.agent_context import AgentContext
from spotrun.checkpoint.outputs import kept, named_keys, read_listing
from spotrun.checkpoint.upload import NICENESS, NICENESS_MAX, put_verified
from spotrun.errors import CheckpointDamaged
from spotrun.folder.stored_files import FILES_MAX, FOLDER, LeftOut, Listing, Piece, list_key

LEFT_OUT_NAMED_MAX, TOLD_MAX = 200, 20
"""
Maximum numbers of left-out files that are named: in one list of files (`LEFT_OUT_NAMED_MAX`), and in an attempt's log
(`TOLD_MAX`).
"""
SECRET = "the file contains the value of a secret"
SECRET_NAME = "its name contains the value of a secret"
RESTLESS = "it is still being written"
TOO_MANY = f"there are more than {FILES_MAX:,} files"


class Refused(Exception):
    """A file cannot be stored. If `passing` is True, a later try may succeed."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


class StoredList(NamedTuple):
    """
    A list of files that is in the store. `sent` has the size of each object that had to be sent, by its key. The
    objects are the list itself, and pieces of its files. `stored_bytes` is the total size of the pieces that this list
    and the earlier lists name.
    """

    key: str
    blake3: str
    sent: Mapping[str, int]
    stored_bytes: int


class ContentStore:
    """
    Stores the pieces of a run's files, and deletes the pieces that are no longer needed. Before any other method, call
    `begin`. Several threads can safely use one object at the same time.
    """

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._attempt = -1
        self._lock = threading.Lock()
        self._at_work = 0
        self._lists: dict[str, Listing | None] = {}
        """The lists of files that the ledger names, by key. The value is None for a list that cannot be read."""
        self._sent: dict[str, int] = {}
        self._looked_for_garbage = False
        self._told: set[tuple[str, str]] = set()

    def begin(self, attempt: int) -> None:
        self._attempt = attempt

    @contextlib.contextmanager
    def sending(self, go_on: Callable[[], None]) -> Iterator[PieceUpload]:
        """
        Yield an object that sends pieces. Within the `with` block, the caller must also write the ledger entry that
        names the list of the sent files: once the block has ended, pieces that are in no such list may be deleted.
        `go_on` is called before each piece is sent; to cancel the upload, it raises an exception.

        Raises:
            StoreError: the lists in the store cannot be read now.
        """
        with self._lock:
            self._read_lists()
            files = [file for each in self._readable() for file in each.files_of_all]
            known = {piece.blake3: piece for file in files for piece in file.pieces}
            self._at_work += 1
        sending = PieceUpload(self._context, self._attempt, known, go_on)
        try:
            yield sending
        finally:
            with self._lock:
                self._sent |= sending.sent
                self._at_work -= 1

    def newest(self) -> Listing | None:
        newest = self._context.recorder.state.newest_outputs()
        return None if newest is None else self._lists.get(newest.event.key)

    def put_list(self, sending: PieceUpload, listing: Listing) -> StoredList:
        """
        Store a list of files, unless the store already has this list.

        Raises:
            StoreError: the list could not be stored.
        """
        data = msgspec.json.encode(listing)
        digest = blake3(data).hexdigest()
        key = list_key(self._attempt, digest)
        if self._lists.get(key) is None:
            put_verified(self._context.store, key, memoryview(data), sending.go_on)
            sending.sent[key] = len(data)
        with self._lock:
            stored = dict(listing.keys())
            for other in self._readable():
                stored |= other.keys()
        return StoredList(key, digest, dict(sending.sent), sum(stored.values()) + len(data))

    def sent_by_member(self, key: str, listing: Listing) -> None:
        """
        Record what another member of the gang has stored: the list of its files under `key`, and the files' pieces. If
        no list in the ledger comes to name them, `sweep` deletes them.
        """
        with self._lock:
            self._sent |= {key: 0, **listing.keys()}

    def named(self, key: str, listing: Listing) -> None:
        """Record that the list of files under `key` is in the ledger."""
        with self._lock:
            self._lists[key] = listing

    def names_secret(self, path: str) -> bool:
        """
        Return True if `path` contains a secret. Such a path must not be put into a list of files: lists are stored, and
        `spotrun fetch` shows the paths in them.
        """
        return self._context.console.redaction.is_in(path)

    def left_out(self, path: str, size_bytes: int, reason: str) -> LeftOut:
        """Return the record of a file that was left out. Secrets in the file's path are hidden."""
        return LeftOut(path=self._context.console.redaction.hide_in(path), size_bytes=size_bytes, reason=reason)

    def tell(self, left_out: Iterable[LeftOut]) -> None:
        """
        Write to the log which files were left out. A file is named once for each reason. At most the first TOLD_MAX
        files are named.
        """
        for each in left_out:
            if each.reason != RESTLESS and len(self._told) < TOLD_MAX and (each.path, each.reason) not in self._told:
                self._told.add((each.path, each.reason))
                self._context.note(f"{each.path} is not stored: {each.reason}")

    def sweep(self) -> None:
        """
        Delete the pieces of this attempt and earlier attempts that no list in the ledger names. If a list cannot be
        read, delete nothing.
        """
        with self._lock:
            if not self._at_work:
                self._sweep()

    def _sweep(self) -> None:
        state, store = self._context.recorder.state, self._context.store
        if not self._looked_for_garbage:
            mine = tuple(f"{FOLDER}{attempt}/" for attempt in state.attempts if attempt <= self._attempt)
            self._sent |= {each.key: each.size_bytes for each in store.list(FOLDER) if each.key.startswith(mine)}
            self._looked_for_garbage = True
        self._read_lists()
        named = kept(state)
        self._lists = {outputs.event.key: self._lists[outputs.event.key] for outputs in named}
        lists = [(outputs, listing) for outputs in named if (listing := self._lists[outputs.event.key]) is not None]
        if len(lists) < len(named):
            return
        needed = named_keys(lists)
        for key in [key for key in self._sent if key not in needed]:
            store.delete(key)
            del self._sent[key]

    def _read_lists(self) -> None:
        for outputs in kept(self._context.recorder.state):
            if outputs.event.key in self._lists:
                continue
            try:
                self._lists[outputs.event.key] = read_listing(self._context.store, outputs)
            except CheckpointDamaged as damage:
                self._lists[outputs.event.key] = None
                self._context.note(f"cannot read the lists of previously stored files: {damage.message}")

    def _readable(self) -> list[Listing]:
        return [listing for listing in self._lists.values() if listing is not None]


class PieceUpload:
    """
    Sends the pieces of files to the store. If two pieces have the same content, only one of them is sent. `known` has
    the pieces that are already in the store, by digest. `sent` has the size of each object that was sent, by its key.
    Several threads may use one PieceUpload.
    """

    def __init__(
        self, context: AgentContext, attempt: int, known: Mapping[str, Piece], go_on: Callable[[], None]
    ) -> None:
        self._context = context
        self._attempt = attempt
        self._known = known
        self.go_on = go_on
        self.sent: dict[str, int] = {}

    def pieces(self, contents: Iterable[bytes]) -> tuple[Piece, ...]:
        """
        Store a file, whose bytes `contents` yields piece by piece. Return the stored pieces.

        Raises:
            Refused: the file contains a secret.
        """
        found, last = [], b""
        redaction = self._context.console.redaction
        for data in contents:
            if redaction.finds(last + data):
                raise Refused(SECRET)
            last = data[-redaction.reach :] if redaction.reach else b""
            found.append(self._piece(data))
        return tuple(found)

    def has(self, pieces: Iterable[Piece]) -> bool:
        """Return True if the store has all `pieces`, and keeps them until the caller's list is in the ledger."""
        return all(piece.blake3 in self._known or piece.key in self.sent for piece in pieces)

    def _piece(self, data: bytes) -> Piece:
        digest = blake3(data).hexdigest()
        piece = self._known.get(digest) or Piece(self._attempt, digest, len(data))
        if digest not in self._known and piece.key not in self.sent:
            put_verified(self._context.store, piece.key, memoryview(data), self.go_on)
            self.sent[piece.key] = len(data)
        return piece


def over_limits(sizes: Iterable[int], files: int, gb: float, key: str, taken_bytes: int = 0) -> Iterator[str | None]:
    """
    For each file, yield the reason why it is left out; None if it is within the limits `files` and `gb`. `sizes` must
    be in ascending order. `key` is the job's key that sets `gb`. `taken_bytes` is the part of `gb` that other files
    already use.
    """
    left_bytes = gb * 1e9 - taken_bytes
    for size_bytes in sizes:
        files, left_bytes = files - 1, left_bytes - size_bytes
        if files < 0:
            yield TOO_MANY
        else:
            yield f"{key} is {gb:g}, and smaller files have priority" if left_bytes < 0 else None


def stand_behind() -> None:
    """Lower the priority of this thread, so that training goes first. On Linux, each thread has a separate priority."""
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread)
    os.setpriority(os.PRIO_PROCESS, thread, min(niceness + NICENESS, NICENESS_MAX))
