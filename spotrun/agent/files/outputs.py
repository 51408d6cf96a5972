"""
Stores the files of a script while the script trains.

A thread surveys the work folder to find new and changed files:
- at a notice
- when the trainer has ended and its last checkpoint is durable
- also after each checkpoint, and at least every few minutes, if the run's checkpoints do not include the files
  (commit_files.py)

First the thread sends the changed files in pieces, then the list of all files. Only then does it write the ledger
entry, so `spotrun fetch` never returns an incomplete upload. The thread writes its errors to the log, and training
continues.
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

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.files.content_store import (
    LEFT_OUT_NAMED_MAX,
    RESTLESS,
    SECRET_NAME,
    ContentStore,
    PieceUpload,
    Refused,
    over_limits,
    stand_behind,
)
from spotrun.agent.recorder import unless
from spotrun.agent.snapshots.frozen import TornFile, at_place
from spotrun.errors import StoreError, StoreUnavailable
from spotrun.folder import work_files
from spotrun.folder.frozen_files import ContentSource, FrozenFile
from spotrun.folder.ledger import EntryRefused
from spotrun.folder.stored_files import (
    FILES_MAX,
    PIECE_MAX_BYTES,
    Listing,
    OutputFile,
    Piece,
)
from spotrun.folder.work_files import FileVersion, Stamp, Survey
from spotrun.intervals import COMMIT_GAP
from spotrun.run.events import OutputsStored
from spotrun.run.state import RunState
from spotrun.spec.patterns import chooser

EVERY_S = 300.0
"""Seconds of run time between two surveys if the training makes no checkpoint."""
APART_S = COMMIT_GAP.total_seconds()
"""Minimum seconds of run time between two surveys."""
APART_MIN_S = 2.0
"""
Minimum seconds of system time between two surveys. It is small because run time may pass many times as fast as system
time, and so several checkpoints may be made within a few seconds of system time. With a larger value, some of them
would not be followed by a survey.
"""
REST_S = 1.0
"""
Seconds of system time for which a file must stay unchanged. A file that changed more recently may be half
written.
"""
TRIES_BETWEEN_WRITES = 5
WAKE_S = 0.25
AGAIN_AFTER_S = 2.0
"""Seconds of system time until the next try, after a temporary fault of the store."""
SENDERS, SENDERS_AT_THE_END = 2, 8
GIVE_UP_AFTER_S = 1800.0
"""Maximum seconds of system time for storing the files after the training is complete."""
HAND_OVER_AFTER_S = 30.0
"""Maximum seconds of system time for storing the files if the run continues on another instance, or has failed."""


class Abandoned(Exception):
    """The agent cancelled the upload."""


class _StoredOutput(NamedTuple):
    version: FileVersion
    file: OutputFile


class OutputKeeper:
    """Stores the script's files in a separate thread, which `start` starts. The main loop calls the public methods."""

    def __init__(self, context: AgentContext, pieces: ContentStore) -> None:
        self._context = context
        self._pieces = pieces
        self._chosen = chooser(context.spec.outputs.files)
        self._wake = threading.Event()
        self._hurried = self._ending = False
        self._free = threading.Event()
        """An event that is set while the thread is allowed to send."""
        self._free.set()
        self._closed = threading.Event()
        self._failure = ""
        self._done = threading.Event()
        self._attempt = -1
        self._thread: threading.Thread | None = None

    def start(self, attempt: int) -> None:
        if not self._context.spec.outputs.files:
            return
        self._attempt = attempt
        self._thread = threading.Thread(target=self._work, name="outputs", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """
        Make the thread survey the work folder immediately, because the cloud will soon take the instance. The training
        continues meanwhile.
        """
        self._hurried = True
        self._wake.set()

    def hold(self) -> None:
        """Stop sending for now, to leave the network to a final checkpoint."""
        self._free.clear()

    def finish(self, within_s: float) -> None:
        """
        Store the files of the trainer that has ended. Wait for this, but at most `within_s` seconds of system time.
        """
        if self._thread is None:
            return
        self._ending = True
        self._free.set()
        self._wake.set()
        if not self._done.wait(within_s):
            self._context.note(f"could not store all of the script's files in the {within_s:.1f} s after it ended")
        self.close()

    def close(self) -> None:
        """Stop sending, even if some files are not stored yet."""
        self._closed.set()
        self._free.set()
        self._wake.set()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        stand_behind()
        try:
            storing = _Storing(self._context, self._pieces, self._attempt, self._chosen, self._go_on)
            due = _Due(self._context)
            while not self._closed.is_set():
                ending = self._wait(due)
                if self._store(storing, due, ending=ending) and ending:
                    return
        except (Abandoned, EntryRefused):
            pass  # the run continues on another instance
        except Exception as error:  # noqa: BLE001  the training goes on after any fault here
            self._context.note(f"spotrun has stopped storing the script's files: {error!r}")
        finally:
            self._done.set()

    def _wait(self, due: _Due) -> bool:
        """Wait until a survey is due. Return True if it is the last survey."""
        while not (self._ending or (self._free.is_set() and (self._hurried or due.now()))):
            if self._closed.is_set():
                raise Abandoned
            self._wake.wait(WAKE_S)
            self._wake.clear()
        self._hurried = False
        return self._ending

    def _store(self, storing: _Storing, due: _Due, *, ending: bool) -> bool:
        """
        Store the files. Return False if a temporary fault of the store prevented that. The caller then calls this
        method again later, and the later call sends only the files that are still missing.
        """
        due.looked()
        try:
            storing.store(self._pause, ending=ending)
        except StoreError as error:
            if error.message != self._failure:
                self._context.note(f"the script's files could not be stored: {error.message}")
            self._failure = error.message
            if not isinstance(error, StoreUnavailable):
                return True
            self._closed.wait(AGAIN_AFTER_S)
            return False
        self._failure = ""
        return True

    def _pause(self) -> None:
        """Wait between two surveys of the same files. A file that differs between them is still being written."""
        until_s = time.monotonic() + REST_S
        while time.monotonic() < until_s and not (self._ending or self._closed.is_set()):
            time.sleep(WAKE_S)

    def _go_on(self) -> None:
        """Wait until sending is allowed."""
        self._free.wait()
        if self._closed.is_set():
            raise Abandoned


class _Due:
    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self.looked()

    def looked(self) -> None:
        self._commit = _newest_commit(self._context)
        self._run_s, self._system_s = self._context.clock.monotonic(), time.monotonic()

    def now(self) -> bool:
        newest = self._context.recorder.state.latest_commit()
        if newest is not None and newest.event.files is not None:
            return False
        since_s = self._context.clock.monotonic() - self._run_s
        if since_s < APART_S or time.monotonic() - self._system_s < APART_MIN_S:
            return False
        return since_s >= EVERY_S or _newest_commit(self._context) != self._commit


def _newest_commit(context: AgentContext) -> int | None:
    newest = context.recorder.state.latest_commit()
    return None if newest is None else newest.number


class _FileList(NamedTuple):
    listing: Listing
    left_out: int


class _Storing:
    """
    Stores the files that have changed since the last call. It is not thread-safe: only one thread at a time is allowed
    to use it.
    """

    def __init__(
        self,
        context: AgentContext,
        pieces: ContentStore,
        attempt: int,
        chosen: Callable[[str], bool],
        go_on: Callable[[], None],
    ) -> None:
        self._context = context
        self._pieces = pieces
        self._attempt = attempt
        self._chosen = chosen
        self._go_on = go_on
        self._work = context.assignment.work
        self._before = work_files.remembered(context.assignment.files_before)
        self._known: dict[str, _StoredOutput] = {}

    def store(self, pause: Callable[[], None], *, ending: bool) -> None:
        """
        Survey the files, send the new ones, store a list of all files, and write an entry that refers to the list.

        Raises:
            StoreError: not all files could be stored; nothing was recorded.
            EntryRefused: the ledger accepts no more entries from this attempt.
        """
        looked_at, commit = self._context.clock.now(), _newest_commit(self._context)
        with self._pieces.sending(self._go_on) as sending:
            seen = work_files.survey(self._work, self._before, self._chosen)
            resting = None
            if not ending and seen.files != {path: known.version for path, known in self._known.items()}:
                pause()
                resting = work_files.survey(self._work, self._before, self._chosen)
            found = self._found(sending, seen, resting, SENDERS_AT_THE_END if ending else SENDERS)
            if found.listing != (self._pieces.newest() or Listing(files=())):
                self._write_down(sending, found, looked_at, commit)
        self._pieces.sweep()

    # -- the files ---------------------------------------------------------------------------------------------------

    def _found(self, sending: PieceUpload, seen: Survey, resting: Survey | None, senders: int) -> _FileList:
        """
        Send the new files, and return the list of all files. The list keeps each file that an earlier attempt stored,
        even if the file is not on this instance.
        """
        newest = self._pieces.newest()
        before = {} if newest is None else {file.path: file for file in newest.files}
        files = {path: file for path, file in before.items() if file.attempt != self._attempt}
        files = {path: file for path, file in files.items() if path not in seen.files}
        refused = {path: (0, reason) for path, reason in seen.refused.items()}
        taken = self._within_limits(seen.files, files, refused)
        done: dict[str, OutputFile] = {}
        with ThreadPoolExecutor(senders, "outputs", initializer=stand_behind) as pool:
            coming = {path: pool.submit(self._file, sending, path, each, resting) for path, each in taken.items()}
            for path, future in coming.items():
                try:
                    files[path] = done[path] = future.result()
                except Refused as refusal:
                    if refusal.passing and path in before:
                        files[path] = before[path]  # keep the newest version of the file that was at rest
                    else:
                        refused[path] = (taken[path].stamp.size_bytes, str(refusal))
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        self._known = {path: _StoredOutput(taken[path], file) for path, file in done.items()}
        left_out = [self._pieces.left_out(path, size, why) for path, (size, why) in sorted(refused.items())]
        self._pieces.tell(left_out)
        removed = tuple(path for path in seen.gone if path not in files and not self._pieces.names_secret(path))
        listed = tuple(files[path] for path in sorted(files))
        listing = Listing(files=listed, left_out=tuple(left_out[:LEFT_OUT_NAMED_MAX]), removed=removed)
        return _FileList(listing, len(left_out))

    def _within_limits(
        self, files: Mapping[str, FileVersion], carried: Mapping[str, OutputFile], refused: dict[str, tuple[int, str]]
    ) -> dict[str, FileVersion]:
        """Choose the files that are within the limits. Small files have priority."""
        smallest_first = sorted(files.items(), key=lambda item: (item[1].stamp.size_bytes, item[0]))
        limits = over_limits(
            (seen.stamp.size_bytes for _, seen in smallest_first),
            FILES_MAX - len(carried),
            self._context.spec.outputs.max_gb,
            "outputs.max_gb",
            sum(file.size_bytes for file in carried.values()),
        )
        taken: dict[str, FileVersion] = {}
        for (path, seen), limit in zip(smallest_first, limits, strict=True):
            if limit is None:
                taken[path] = seen
            else:
                refused[path] = (seen.stamp.size_bytes, limit)
        return taken

    def _file(self, sending: PieceUpload, path: str, seen: FileVersion, resting: Survey | None) -> OutputFile:
        """
        Store one file.

        Raises:
            Refused: the file cannot be stored. The error says whether a later try may succeed.
        """
        if self._pieces.names_secret(path):
            raise Refused(SECRET_NAME)
        known = self._known.get(path)
        if known is not None and known.version == seen:
            return known.file
        return self._new(sending, path, self._as_it_rests(path, seen, resting))

    def _as_it_rests(self, path: str, seen: FileVersion, resting: Survey | None) -> FileVersion:
        """
        Return the version of the file to store: the version in the second survey, `resting`, or `seen`, the version in
        the first survey, if there was no second one. A large file must be the same in both surveys. A small file may
        differ, because some small files, such as logs, are written constantly.

        Raises:
            Refused: a large file has changed, or the file is gone.
        """
        now = seen if resting is None else resting.files.get(path)
        if now is None or (now != seen and now.stamp.size_bytes > PIECE_MAX_BYTES):
            raise Refused(RESTLESS, passing=True)
        return now

    def _new(self, sending: PieceUpload, path: str, seen: FileVersion) -> OutputFile:
        try:
            if seen.stamp.size_bytes <= PIECE_MAX_BYTES:
                seen, data = self._small(seen)
                pieces = sending.pieces((data,) if data else ())
            else:
                pieces = sending.pieces(self._read(seen))
        except TornFile:
            raise Refused(RESTLESS, passing=True) from None
        except OSError as error:
            raise Refused(f"it cannot be read: {error.strerror}") from error
        return output_file(path, seen.stamp, self._attempt, pieces)

    def _small(self, seen: FileVersion) -> tuple[FileVersion, bytes]:
        """
        Read a file that fits into one piece. Return its contents and version. If the file is written to while it is
        read, read it again.

        Raises:
            TornFile: the file was written to during each try, or has grown beyond one piece.
        """
        for _ in range(TRIES_BETWEEN_WRITES):
            stamp = Stamp.of(os.stat(self._work / seen.place, follow_symlinks=False))
            if not stat.S_ISREG(stamp.mode) or stamp.size_bytes > PIECE_MAX_BYTES:
                break
            now = FileVersion(seen.place, stamp)
            with contextlib.suppress(TornFile):
                return now, b"".join(self._read(now))
        raise TornFile

    def _read(self, seen: FileVersion) -> Iterator[bytes]:
        with at_place(self._work, FrozenFile(seen.place, seen.place, seen.stamp, ContentSource.PLACE)) as whole:
            yield from whole.pieces(PIECE_MAX_BYTES)

    # -- the ledger --------------------------------------------------------------------------------------------------

    def _write_down(self, sending: PieceUpload, found: _FileList, looked_at: datetime, commit: int | None) -> None:
        stored = self._pieces.put_list(sending, found.listing)
        event = OutputsStored(
            attempt=self._attempt,
            key=stored.key,
            blake3=stored.blake3,
            commit=commit,
            step=self._context.status.node.step,
            looked_at=looked_at,
            files=len(found.listing.files),
            size_bytes=sum(file.size_bytes for file in found.listing.files),
            objects=len(stored.sent),
            sent_bytes=sum(stored.sent.values()),
            stored_bytes=stored.stored_bytes,
            left_out=found.left_out,
        )
        self._context.recorder.append(unless(lambda state: _is_newest(state, stored.key), event)).result()
        self._pieces.named(stored.key, found.listing)


def _is_newest(state: RunState, key: str) -> bool:
    newest = state.newest_outputs()
    return newest is not None and newest.event.key == key


def output_file(
    path: str, stamp: Stamp, attempt: int, pieces: tuple[Piece, ...], mode: int | None = None
) -> OutputFile:
    return OutputFile(
        path=path,
        size_bytes=stamp.size_bytes,
        modified_ns=max(0, stamp.modified_ns),
        attempt=attempt,
        pieces=pieces,
        executable=bool(stamp.mode & stat.S_IXUSR),
        mode=mode,
    )
