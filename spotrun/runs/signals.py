"""
Turns SIGTERM and SIGHUP into exceptions, which lets a process print the state of its run before it ends. Without a
handler, these signals end the process at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from types import FrameType

HEEDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class Signalled(SystemExit):
    """
    The exception for SIGTERM and SIGHUP; Ctrl-C stays a KeyboardInterrupt. If nothing catches it, the process exits
    with 128 plus the signal's number, the code that shells report for a process that a signal ended.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


@contextlib.contextmanager
def heeding() -> Iterator[None]:
    """
    Raise `Signalled` in the main thread for SIGTERM and SIGHUP while this block runs. A signal that the parent process
    told this process to ignore (`nohup`) stays ignored.
    """
    before = [number for number in HEEDED if signal.getsignal(number) == signal.SIG_DFL]
    _handle(before, _raise)
    try:
        yield
    finally:
        _handle(before, signal.SIG_DFL)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """
    Ignore signals and Ctrl-C while this block runs. The block does work that an earlier signal requested, and a further
    signal must not interrupt it.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *HEEDED)}
    # SIG_IGN would also work here, but processes started in this block would inherit it. They do not inherit a handler.
    _handle([number for number, handler in before.items() if handler != signal.SIG_IGN], lambda *_: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(numbers: list[signal.Signals], handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _raise(number: int, _: FrameType | None) -> None:
    if number == signal.SIGHUP:
        _leave_terminal()
    raise Signalled(number)


def _leave_terminal() -> None:
    """
    Connect the standard streams to /dev/null if their terminal is gone, because reads and writes would fail from now
    on.
    """
    gone = [descriptor for descriptor in (0, 1, 2) if _hung_up(descriptor)]
    if gone:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in gone:
            os.dup2(null, descriptor)
        os.close(null)


def _hung_up(descriptor: int) -> bool:
    """
    Return True if the descriptor belongs to a terminal that is gone. It is then still a character device, but no longer
    a terminal.
    """
    try:
        return stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor)
    except OSError:  # it is closed
        return False
