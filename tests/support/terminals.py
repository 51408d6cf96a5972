"""Commands on a terminal: what they print, what is typed, and the terminal's end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import psutil

from tests.support.eventually import eventually

EXPECTED_WITHIN_S = 90.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """
    A command in a session of its own, on a terminal of `columns`. Its end hangs up, which is what a closed window does.

    What is printed is read only in `until` and `ended`.
    """

    def __init__(
        self, command: Sequence[str], columns: int = 100, environment: Mapping[str, str] | None = None
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **(environment or {}), "TERM": "xterm"},
            preexec_fn=lambda: os.login_tty(theirs),
        )
        os.close(theirs)
        self.printed = ""
        self._read_to = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | BaseException | None) -> None:
        self.hang_up()
        if kind is not None:
            self.process.kill()
        self.process.wait()

    def until(self, text: str) -> str:
        """What was printed up to `text`, from where the last call ended."""
        give_up_at = time.monotonic() + EXPECTED_WITHIN_S
        while (at := self.printed.find(text, self._read_to)) < 0:
            assert self._read(), f"{text!r} was not printed:\n{self.printed[self._read_to :]}"
            assert time.monotonic() < give_up_at, f"{text!r} was not printed in time:\n{self.printed[self._read_to :]}"
        before, self._read_to = self._read_to, at + len(text)
        return self.printed[before : self._read_to]

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def press_ctrl_c(self) -> None:
        """Once the command waits: Python's `input` misses a Ctrl-C between its question and its reading."""
        eventually(lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_SLEEPING)
        self.type("\x03")

    def ended(self, code: int) -> str:
        """All that it printed, once it has ended with `code`."""
        give_up_at = time.monotonic() + EXPECTED_WITHIN_S
        while self._read():
            assert time.monotonic() < give_up_at, f"it goes on:\n{self.printed[self._read_to :]}"
        assert self.process.wait(EXPECTED_WITHIN_S) == code, self.printed
        return self.printed

    def hang_up(self) -> None:
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    def _read(self) -> bool:
        """Whether there may be more."""
        if not select.select([self._ours], [], [], 0.2)[0]:
            return True
        data = b""
        with contextlib.suppress(OSError):  # as Linux says it when nobody has the other end open
            data = os.read(self._ours, 1 << 16)
        self.printed += _ESCAPES.sub("", data.decode(errors="replace"))
        return bool(data)
