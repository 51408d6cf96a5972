"""
Keeps the output of the job's `setup` and of training in a file on the instance, and sends it to the store in chunks.
A chunk in the store never changes.

    logs/LAUNCH/000000.log, 000001.log, …      the chunks; joined in this order, they give the file
    logs/LAUNCH.MEMBER/                        the same for each other member of a gang

The chunks in the store show how many bytes were sent. So a restarted agent continues where the previous agent stopped.
After a pause in the output, a new line is sent immediately. If a program prints constantly, a chunk is sent every few
seconds.

`setup` and the trainers write directly into the file, so no output is lost when an agent ends. Because they may keep
the file open, the agent cannot replace it with a new file. Instead, it frees the disk space of output that was sent,
except for the last KEPT_BYTES. Freed bytes read as zeros, and every byte keeps its offset. Once output is sent, the
secrets in it are replaced with asterisks on the disk too.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections import deque
from pathlib import Path

from spotrun.agent.logs.output_redaction import OutputRedaction
from spotrun.clock import Clock
from spotrun.errors import StoreError, unless_no_room
from spotrun.run.bounds import LOG_CHUNK_BYTES
from spotrun.secrets.readings import PART
from spotrun.store.port import Store

SHIP_EVERY_S = 5.0
"""Minimum seconds of run time between two chunks."""
SHIP_EVERY_MIN_S = 1.0
"""Lower limit of SHIP_EVERY_S in seconds of system time, because each chunk costs an fsync."""
LOOK_EVERY_S = 0.25
"""Seconds of system time between two reads of the file's length."""
TAIL_BYTES = 2000
KEPT_BYTES = 64 << 20
"""Number of bytes of shipped output that stay on the instance's disk."""
GIVEN_BACK_AT_ONCE_BYTES = 1 << 20
"""Unit, in bytes, in which disk space is freed: a multiple of any page size."""
TEXT_MAX_BYTES = 4096
"""
Maximum bytes of a text in which secrets are searched for. A longer text is shortened to this length before the search.
"""
CUT = " …"
LOG_NAME = "training.log"


class Console:
    """
    The log file of an instance. The job's `setup` and the training write their output into it. When this class reads
    from the file, `redaction` hides the secrets in the text.
    """

    def __init__(self, folder: Path, redaction: OutputRedaction | None = None, kept_bytes: int = KEPT_BYTES) -> None:
        self.path = folder / LOG_NAME
        self._kept_bytes = kept_bytes
        self._given_back = 0
        self._shipped: deque[tuple[int, bytes]] = deque()
        """
        Output that is in the store, but on the disk still has its secrets. Each item has the offset of its first byte,
        and the redacted form.
        """
        self.redaction = redaction or OutputRedaction()
        self.path.touch(mode=0o600)

    def open(self) -> int:
        """Return a file descriptor for the output of a child process. The caller closes it."""
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def note(self, line: str) -> None:
        with unless_no_room(), self.path.open("a") as file:
            file.write(f"[spotrun] {line}\n")

    def read(self, start: int, size_bytes: int, *, last: bool = True) -> bytes:
        """
        Return at most `size_bytes` of the log from byte `start` on, redacted. Leave out trailing bytes that might be
        the beginning of a secret: a later call returns them, when the whole secret can be recognised. But if `last` is
        True, keep such bytes at the end of the file, because no output follows.
        """
        before = min(start, self.redaction.reach)
        data = self._unsealed(self._raw(start - before, before + size_bytes), start - before)
        hidden = self.redaction.hide(data)
        more = not last or start + size_bytes < self.size_bytes()
        kept = len(hidden) - self.redaction.unfinished(data) if more else len(hidden)
        return hidden[before:kept]

    def _unsealed(self, data: bytes, start: int) -> bytes:
        sealed = max(0, min(len(data), self.redaction.sealed - start))
        return b"*" * sealed + data[sealed:]

    def clean(self, text: str) -> str:
        """
        Return `text` without secrets. This is for texts that do not come from the log file. A text longer than
        TEXT_MAX_BYTES is first shortened to that length. If the last bytes of the shortened text might be the beginning
        of a secret, they are removed too.
        """
        whole = text.encode(errors="backslashreplace")
        data = whole.removesuffix(CUT.encode())[:TEXT_MAX_BYTES]
        hidden = self.redaction.hide(data)
        begun = self.redaction.begun(data, PART) if data == whole else self.redaction.unfinished(data)
        if data == whole and not begun:
            return hidden.decode(errors="replace")
        return hidden[: len(data) - begun].decode(errors="ignore") + CUT

    def shipped(self, start: int, hidden: bytes) -> None:
        """
        Record that the store has the output from byte `start` on, in its redacted form `hidden`. Once enough output has
        followed, overwrite the original on the disk with this form. Until then the original is needed to recognise a
        secret that begins at the end of this output and continues in the next.
        """
        self._shipped.append((start, hidden))
        self._hide(start + len(hidden) - self.redaction.reach)

    def ends(self) -> None:
        """Redact all shipped output on the disk, because no more output will follow."""
        self._hide(self.size_bytes())

    def _hide(self, before: int) -> None:
        while self._shipped and self._shipped[0][0] + len(self._shipped[0][1]) <= before:
            start, hidden = self._shipped.popleft()
            if self._raw(start, len(hidden)) != hidden:
                with unless_no_room(), self.path.open("r+b") as file:
                    file.seek(start)
                    file.write(hidden)

    def give_back(self, shipped: int) -> None:
        """
        Free the disk space of the first `shipped` bytes, except for the last `kept_bytes` of them. Do nothing if the
        file system does not support this.
        """
        end = (shipped - self._kept_bytes) // GIVEN_BACK_AT_ONCE_BYTES * GIVEN_BACK_AT_ONCE_BYTES
        if end <= self._given_back:
            return
        with contextlib.suppress(OSError), self.path.open("r+b") as file, mmap.mmap(file.fileno(), end) as view:
            view.madvise(mmap.MADV_REMOVE, self._given_back, end - self._given_back)
        self._given_back = end

    def _raw(self, start: int, size_bytes: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(size_bytes)

    def size_bytes(self) -> int:
        return self.path.stat().st_size

    def tail(self, size_bytes: int = TAIL_BYTES, since: int = 0) -> str:
        """Return the last whole lines of the output after byte `since`, at most `size_bytes`."""
        end = self.size_bytes()
        start = max(since, end - size_bytes)
        text = self.read(start, end - start).decode(errors="replace")
        return text if start in (0, since) else text.partition("\n")[2] or text


class LogShipper:
    """A thread that ships the console. While the store is unavailable, the log is delayed, not lost."""

    def __init__(self, store: Store, clock: Clock, console: Console, place: str) -> None:
        self._store = store
        self._console = console
        self._prefix = f"logs/{place}/"
        self._every_s = max(SHIP_EVERY_MIN_S, SHIP_EVERY_S / clock.scale)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ship the rest of the log, if the store accepts it."""
        self._stop.set()
        self._thread.join(10)

    def _work(self) -> None:
        place: tuple[int, int] | None = None
        next_s = 0.0
        while True:
            stopping = self._stop.wait(LOOK_EVERY_S)
            if not stopping and (time.monotonic() < next_s or self._is_all_of_it(place)):
                continue
            try:
                place = self._ship(place or self._shipped(), last=stopping)
            except StoreError:
                place = None  # unknown which chunks the store has: count them
            if stopping:
                self._console.ends()
                return
            next_s = time.monotonic() + self._every_s

    def _is_all_of_it(self, place: tuple[int, int] | None) -> bool:
        return (0 if place is None else place[1]) == self._console.size_bytes()

    def _shipped(self) -> tuple[int, int]:
        """Return how many chunks and how many bytes the store has."""
        chunks = self._store.list(self._prefix)
        return len(chunks), sum(chunk.size_bytes for chunk in chunks)

    def _ship(self, place: tuple[int, int], *, last: bool) -> tuple[int, int]:
        number, offset = place
        while data := self._console.read(offset, LOG_CHUNK_BYTES, last=last):
            if not self._store.put_if_absent(f"{self._prefix}{number:06d}.log", data):
                number, offset = self._shipped()
                continue
            self._console.shipped(offset, data)
            number, offset = number + 1, offset + len(data)
            self._console.give_back(offset)
        return number, offset
