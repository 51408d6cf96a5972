"""
Stores what the script writes, beside its training.

A thread looks at the work folder after each checkpoint, and now and then where there are none; at a notice; and once
more when the trainer has ended and its last checkpoint is durable. What has changed is sent piece by piece, the list of
all files after it, and the ledger's entry last: half of a sending is never fetched. Whatever goes wrong here is told in
the log, and training goes on.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import NamedTuple

import msgspec
from blake3 import blake3

from spotrun.agent import work_files
from spotrun.agent.node import Node
from spotrun.agent.recorder import unless
from spotrun.agent.work_files import Seen, Stamp, Survey
from spotrun.checkpoint.beneath import open_for_reading
from spotrun.checkpoint.outputs import kept, named_keys, read_listing
from spotrun.checkpoint.upload import NICENESS, NICENESS_MAX, put_verified
from spotrun.errors import CheckpointDamaged, StoreError, StoreUnavailable
from spotrun.folder.ledger import EntryRefused
from spotrun.folder.stored_files import (
    FILES_MAX,
    FOLDER,
    PIECE_MAX_BYTES,
    LeftOut,
    Listing,
    OutputFile,
    Piece,
    list_key,
)
from spotrun.intervals import COMMIT_GAP
from spotrun.run.events import OutputsStored
from spotrun.spec.patterns import chooser

EVERY_S = 300.0
"""Run time between two looks where no checkpoint is made."""
APART_S = COMMIT_GAP.total_seconds()
"""Run time between two looks at least."""
APART_MIN_S = 2.0
"""System time. More would leave out checkpoints where run time passes faster."""
REST_S = 1.0
"""System time in which a file must not change; else it may be half written."""
TRIES_BETWEEN_WRITES = 5
WAKE_S = 0.25
AGAIN_AFTER_S = 2.0
"""System time after a fault of the store that may pass."""
SENDERS, SENDERS_AT_THE_END = 2, 8
LEFT_OUT_NAMED_MAX, TOLD_MAX = 200, 20
"""In a list, and in the log of an attempt."""
GIVE_UP_AFTER_S = 1800.0
"""System time for the files that are there when the training is done."""
HAND_OVER_AFTER_S = 30.0
"""The same when the run goes on elsewhere, or has failed."""

TOO_MANY = f"there are more than {FILES_MAX:,} files"
SECRET = "it holds the value of a secret"
RESTLESS = "it is still being written"


class Abandoned(Exception):
    """The sending was called off."""


class Refused(Exception):
    """Why a file cannot be stored. `passing`: it may be stored later."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


class _Known(NamedTuple):
    """A file as it was stored last."""

    seen: Seen
    file: OutputFile


class OutputKeeper:
    """Nothing is stored before `start`. The methods are the main loop's; a thread of its own does the work."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._chosen = chooser(node.spec.outputs.files)
        self._wake = threading.Event()
        self._hurried = self._ending = False
        self._free = threading.Event()
        """Cleared while nothing may be sent."""
        self._free.set()
        self._closed = threading.Event()
        self._failure = ""
        self._done = threading.Event()
        self._attempt = -1
        self._thread: threading.Thread | None = None

    def start(self, attempt: int) -> None:
        if not self._node.spec.outputs.files:
            return
        self._attempt = attempt
        self._thread = threading.Thread(target=self._work, name="outputs", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """The instance goes soon: look now, while the training goes on."""
        self._hurried = True
        self._wake.set()

    def hold(self) -> None:
        """Nothing more is sent: the line belongs to a final checkpoint."""
        self._free.clear()

    def finish(self, within_s: float) -> None:
        """The trainer has ended: store what it left. Returns when that is done, or after so much system time."""
        if self._thread is None:
            return
        self._ending = True
        self._free.set()
        self._wake.set()
        if not self._done.wait(within_s):
            self._node.note(f"the last look at the files of the script could not be finished within {within_s:.1f} s")
        self.close()

    def close(self) -> None:
        """Send nothing more, whatever is left."""
        self._closed.set()
        self._free.set()
        self._wake.set()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        _stand_behind()
        try:
            storing = _Storing(self._node, self._attempt, self._chosen, self._go_on)
            due = _Due(self._node)
            while not self._closed.is_set():
                ending = self._wait(due)
                if self._store(storing, due, ending=ending) and ending:
                    return
        except (Abandoned, EntryRefused):
            pass  # the run goes on elsewhere
        except Exception as error:  # noqa: BLE001  whatever is wrong here, the training goes on
            self._node.note(f"files of the script are not stored any more: {error!r}")
        finally:
            self._done.set()

    def _wait(self, due: _Due) -> bool:
        """Until there is something to do. True if it is the last."""
        while not (self._ending or (self._free.is_set() and (self._hurried or due.now()))):
            if self._closed.is_set():
                raise Abandoned
            self._wake.wait(WAKE_S)
            self._wake.clear()
        self._hurried = False
        return self._ending

    def _store(self, storing: _Storing, due: _Due, *, ending: bool) -> bool:
        """Whether nothing is left to do. If not, another try is worthwhile, and sends only what is missing."""
        due.looked()
        try:
            storing.store(self._pause, ending=ending)
        except StoreError as error:
            if error.message != self._failure:
                self._node.note(f"files of the script could not be stored: {error.message}")
            self._failure = error.message
            if not isinstance(error, StoreUnavailable):
                return True
            self._closed.wait(AGAIN_AFTER_S)
            return False
        self._failure = ""
        return True

    def _pause(self) -> None:
        """Between two looks at a file that must not change."""
        until_s = time.monotonic() + REST_S
        while time.monotonic() < until_s and not (self._ending or self._closed.is_set()):
            time.sleep(WAKE_S)

    def _go_on(self) -> None:
        """Called before each piece."""
        self._free.wait()
        if self._closed.is_set():
            raise Abandoned


class _Due:
    """When to look next."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.looked()

    def looked(self) -> None:
        self._commit = _newest_commit(self._node)
        self._run_s, self._system_s = self._node.clock.monotonic(), time.monotonic()

    def now(self) -> bool:
        since_s = self._node.clock.monotonic() - self._run_s
        if since_s < APART_S or time.monotonic() - self._system_s < APART_MIN_S:
            return False
        return since_s >= EVERY_S or _newest_commit(self._node) != self._commit


def _newest_commit(node: Node) -> int | None:
    newest = node.recorder.state.latest_commit()
    return None if newest is None else newest.number


class _Found(NamedTuple):
    """The list of the files as they are now, how many are not in it, and the objects that were sent for it."""

    listing: Listing
    left_out: int
    sent: Mapping[str, int]


class _Storing:
    """What is stored, and what has changed since. One thread at a time may use it."""

    def __init__(self, node: Node, attempt: int, chosen: Callable[[str], bool], go_on: Callable[[], None]) -> None:
        self._node = node
        self._attempt = attempt
        self._chosen = chosen
        self._go_on = go_on
        self._before = work_files.remembered(node.assignment)
        self._known: dict[str, _Known] = {}
        self._told: set[tuple[str, str]] = set()
        self._lists: dict[int, Listing | None] = {}
        """The lists that the ledger still names, by the number of their entry; None for one that cannot be read."""
        self._sent: dict[str, int] = {}
        self._looked_for_garbage = False

    def store(self, pause: Callable[[], None], *, ending: bool) -> None:
        """
        Look, send what is new, and write that down.

        Raises:
            StoreError: it is not all there; nothing was written down.
            EntryRefused: this attempt may not write any more.
        """
        node, looked_at, commit = self._node, self._node.clock.now(), _newest_commit(self._node)
        self._read_lists()
        seen = work_files.survey(node.assignment.work, self._before, self._chosen)
        resting = None
        if not ending and seen.files != {path: known.seen for path, known in self._known.items()}:
            pause()
            resting = work_files.survey(node.assignment.work, self._before, self._chosen)
        found = self._found(seen, resting, SENDERS_AT_THE_END if ending else SENDERS)
        if found.listing != (self._newest() or Listing(files=())):
            self._write_down(found, looked_at, commit)
        self._sweep()

    def _read_lists(self) -> None:
        for outputs in kept(self._node.recorder.state):
            if outputs.number in self._lists:
                continue
            try:
                self._lists[outputs.number] = read_listing(self._node.store, outputs)
            except CheckpointDamaged as damage:
                self._lists[outputs.number] = None
                self._node.note(f"files that were stored before cannot be read back: {damage.message}")

    def _newest(self) -> Listing | None:
        newest = self._node.recorder.state.outputs[-1:]
        return self._lists[newest[0].number] if newest else None

    def _readable(self) -> list[Listing]:
        return [listing for listing in self._lists.values() if listing is not None]

    # -- the files ---------------------------------------------------------------------------------------------------

    def _found(self, seen: Survey, resting: Survey | None, senders: int) -> _Found:
        """What an earlier attempt has stored and this one does not have is still there."""
        newest = self._newest()
        before = {} if newest is None else {file.path: file for file in newest.files}
        files = {path: file for path, file in before.items() if file.attempt != self._attempt}
        files = {path: file for path, file in files.items() if path not in seen.files}
        refused = {path: (0, reason) for path, reason in seen.refused.items()}
        taken = self._within_limits(seen.files, files, refused)
        known = {piece.blake3: piece for each in self._readable() for file in each.files for piece in file.pieces}
        sending = _Sending(self._node, self._attempt, known, self._go_on)
        try:
            with ThreadPoolExecutor(senders, "outputs", initializer=_stand_behind) as pool:
                coming = {path: pool.submit(self._file, sending, path, each, resting) for path, each in taken.items()}
                for path, future in coming.items():
                    try:
                        files[path] = future.result()
                    except Refused as refusal:
                        if refusal.passing and path in before:
                            files[path] = before[path]  # as it was when it was at rest
                        else:
                            refused[path] = (taken[path].stamp.size_bytes, str(refusal))
                    except BaseException:
                        pool.shutdown(cancel_futures=True)
                        raise
        finally:
            self._sent |= sending.sent
        self._known = {path: _Known(taken[path], file) for path, file in sending.done.items()}
        self._tell(refused)
        named = sorted(refused.items())[:LEFT_OUT_NAMED_MAX]
        left_out = tuple(LeftOut(path=path, size_bytes=size, reason=reason) for path, (size, reason) in named)
        listing = Listing(files=tuple(files[path] for path in sorted(files)), left_out=left_out)
        return _Found(listing, len(refused), dict(sending.sent))

    def _within_limits(
        self, files: Mapping[str, Seen], carried: Mapping[str, OutputFile], refused: dict[str, tuple[int, str]]
    ) -> dict[str, Seen]:
        """The small ones first."""
        max_gb = self._node.spec.outputs.max_gb
        left_bytes = max_gb * 1e9 - sum(file.size_bytes for file in carried.values())
        left = FILES_MAX - len(carried)
        taken: dict[str, Seen] = {}
        for path, seen in sorted(files.items(), key=lambda item: (item[1].stamp.size_bytes, item[0])):
            size_bytes = seen.stamp.size_bytes
            left, left_bytes = left - 1, left_bytes - size_bytes
            if left < 0 or left_bytes < 0:
                reason = TOO_MANY if left < 0 else f"outputs.max_gb is {max_gb:g}, and the smaller files go first"
                refused[path] = (size_bytes, reason)
            else:
                taken[path] = seen
        return taken

    def _file(self, sending: _Sending, path: str, seen: Seen, resting: Survey | None) -> OutputFile:
        """
        Raises:
            Refused: it cannot be stored, or not now.
        """
        known = self._known.get(path)
        if known is not None and known.seen == seen:
            file = known.file
        else:
            file = self._new(sending, path, self._as_it_rests(path, seen, resting))
        sending.done[path] = file
        return file

    def _as_it_rests(self, path: str, seen: Seen, resting: Survey | None) -> Seen:
        """A small file that is always being written, like a log, is taken as it stands."""
        now = seen if resting is None else resting.files.get(path)
        if now is None or (now != seen and now.stamp.size_bytes > PIECE_MAX_BYTES):
            raise Refused(RESTLESS, passing=True)
        return now

    def _new(self, sending: _Sending, path: str, seen: Seen) -> OutputFile:
        work = self._node.assignment.work
        if seen.stamp.size_bytes <= PIECE_MAX_BYTES:
            seen, pieces = sending.small(work, seen)
        else:
            pieces = tuple(sending.pieces(work, seen))
        return OutputFile(
            path=path,
            size_bytes=seen.stamp.size_bytes,
            modified_ns=max(0, seen.stamp.modified_ns),
            attempt=self._attempt,
            pieces=pieces,
            executable=bool(seen.stamp.mode & stat.S_IXUSR),
        )

    def _tell(self, refused: Mapping[str, tuple[int, str]]) -> None:
        """In the log, once for each file and reason, and for the first files only."""
        for path, (_, reason) in sorted(refused.items()):
            if reason != RESTLESS and len(self._told) < TOLD_MAX and (path, reason) not in self._told:
                self._told.add((path, reason))
                self._node.note(f"{path} is not stored: {reason}")

    # -- the ledger --------------------------------------------------------------------------------------------------

    def _write_down(self, found: _Found, looked_at: datetime, commit: int | None) -> None:
        data = msgspec.json.encode(found.listing)
        key = list_key(self._attempt, blake3(data).hexdigest())
        digest = put_verified(self._node.store, key, memoryview(data), self._go_on)
        self._sent[key] = len(data)
        stored = dict(found.listing.keys())
        for other in self._readable():
            stored |= other.keys()
        event = OutputsStored(
            attempt=self._attempt,
            key=key,
            blake3=digest,
            commit=commit,
            step=self._node.status.node.step,
            looked_at=looked_at,
            files=len(found.listing.files),
            size_bytes=sum(file.size_bytes for file in found.listing.files),
            objects=len(found.sent) + 1,
            sent_bytes=sum(found.sent.values()) + len(data),
            stored_bytes=sum(stored.values()) + len(data),
            left_out=found.left_out,
        )
        once = unless(lambda state: state.outputs and state.outputs[-1].event.key == key, event)
        self._node.recorder.append(once).result()
        self._lists[self._node.recorder.state.outputs[-1].number] = found.listing

    def _sweep(self) -> None:
        """Delete what no list needs any more, of this attempt and of those before it, if all lists can be read."""
        state, store = self._node.recorder.state, self._node.store
        named = kept(state)
        if not self._looked_for_garbage:
            mine = tuple(f"{FOLDER}{attempt}/" for attempt in state.attempts if attempt <= self._attempt)
            self._sent |= {each.key: each.size_bytes for each in store.list(FOLDER) if each.key.startswith(mine)}
            self._looked_for_garbage = True
        self._read_lists()
        self._lists = {outputs.number: self._lists[outputs.number] for outputs in named}
        lists = [(outputs, listing) for outputs in named if (listing := self._lists[outputs.number]) is not None]
        if len(lists) < len(named):
            return
        needed = named_keys(lists)
        for key in [key for key in self._sent if key not in needed]:
            store.delete(key)
            del self._sent[key]


class _Sending:
    """
    Sends the pieces of files, each content once. `known` are the pieces that are there, by their digests.

    `sent` has the objects that were sent, `done` the files of which all pieces are there. Several threads use it.
    """

    def __init__(self, node: Node, attempt: int, known: Mapping[str, Piece], go_on: Callable[[], None]) -> None:
        self._node = node
        self._attempt = attempt
        self._known = known
        self._go_on = go_on
        self.sent: dict[str, int] = {}
        self.done: dict[str, OutputFile] = {}

    def small(self, work: os.PathLike[str], seen: Seen) -> tuple[Seen, tuple[Piece, ...]]:
        """
        A file of one piece or none, as it is now: it is read between two writes, and sent then.

        Raises:
            Refused: it changes too fast, has grown, cannot be read, or holds a secret.
        """
        try:
            for _ in range(TRIES_BETWEEN_WRITES):
                with _opened(work, seen.place) as fd:
                    stamp = Stamp.of(os.fstat(fd))
                    if not stat.S_ISREG(stamp.mode) or stamp.size_bytes > PIECE_MAX_BYTES:
                        break
                    data = os.pread(fd, stamp.size_bytes, 0)
                    if Stamp.of(os.fstat(fd)) == stamp and len(data) == stamp.size_bytes:
                        if self._node.console.redaction.finds(data):
                            raise Refused(SECRET)
                        return Seen(seen.place, stamp), (self._piece(data),) if data else ()
        except OSError as error:
            raise Refused(f"it cannot be read: {error.strerror}") from error
        raise Refused(RESTLESS, passing=True)

    def pieces(self, work: os.PathLike[str], seen: Seen) -> Iterator[Piece]:
        """
        The pieces of a file, all of them stored.

        Raises:
            Refused: it is not what it was, or cannot be read, or holds a secret.
        """
        try:
            with _opened(work, seen.place) as fd:
                if Stamp.of(os.fstat(fd)) != seen.stamp:
                    raise Refused(RESTLESS, passing=True)
                yield from self._pieces(fd, seen.stamp.size_bytes)
                if Stamp.of(os.fstat(fd)) != seen.stamp:
                    raise Refused(RESTLESS, passing=True)
        except OSError as error:
            raise Refused(f"it cannot be read: {error.strerror}") from error

    def _pieces(self, fd: int, size_bytes: int) -> Iterator[Piece]:
        last = b""
        for start in range(0, size_bytes, PIECE_MAX_BYTES):
            data = _read(fd, start, min(PIECE_MAX_BYTES, size_bytes - start))
            redaction = self._node.console.redaction
            if redaction.finds(last + data):
                raise Refused(SECRET)
            last = data[-redaction.reach :] if redaction.reach else b""
            yield self._piece(data)

    def _piece(self, data: bytes) -> Piece:
        digest = blake3(data).hexdigest()
        piece = self._known.get(digest) or Piece(self._attempt, digest, len(data))
        if digest not in self._known and piece.key not in self.sent:
            put_verified(self._node.store, piece.key, memoryview(data), self._go_on)
            self.sent[piece.key] = len(data)
        return piece


@contextlib.contextmanager
def _opened(work: os.PathLike[str], place: str) -> Iterator[int]:
    root = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = open_for_reading(root, place)
    finally:
        os.close(root)
    try:
        yield fd
    finally:
        os.close(fd)


def _read(fd: int, start: int, size_bytes: int) -> bytes:
    """
    Raises:
        Refused: the file has become shorter.
    """
    data = bytearray()
    while len(data) < size_bytes:
        piece = os.pread(fd, size_bytes - len(data), start + len(data))
        if not piece:
            raise Refused(RESTLESS, passing=True)
        data += piece
    return bytes(data)


def _stand_behind() -> None:
    """Training goes first: to Linux each thread has a priority of its own."""
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread)
    os.setpriority(os.PRIO_PROCESS, thread, min(niceness + NICENESS, NICENESS_MAX))
