"""
Finds and ends whole process trees on Linux.

A process is identified by its id *and* its start time, so a newer process with the same id is never mistaken for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable

from spotrun import proc
from spotrun.proc import ProcessMark, Stat

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.002
KILL_WITHIN_S = 60.0
"""
Maximum seconds of system time for killed processes to end. A process with gigabytes of memory takes a while to free it,
and a process may hang in the kernel.
"""

_libc = ctypes.CDLL(None, use_errno=True)


def mark(pid: int) -> ProcessMark | None:
    """Return the live process with this id; None if there is none."""
    stat = proc.stat(pid)
    return None if stat is None or _is_dead(stat) else stat.mark


def is_alive(process: ProcessMark) -> bool:
    return mark(process.pid) == process


def kill(process: ProcessMark) -> None:
    """
    Send SIGKILL to exactly this process. Do nothing if the process is gone, if its id now belongs to another process,
    or if another user owns it.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def descendants(pid: int) -> list[ProcessMark]:
    """Return all live descendants of the process `pid`, without that process itself."""
    children: dict[int, list[Stat]] = {}
    for stat in proc.all_stats():
        children.setdefault(stat.parent, []).append(stat)
    found, pending = [], [pid]
    while pending:
        below = children.get(pending.pop(), [])
        found += [stat.mark for stat in below if not _is_dead(stat)]
        pending += [stat.mark.pid for stat in below]
    return found


def carrying(name: str, value: str) -> list[ProcessMark]:
    """Return all live processes of this user that were started with `name=value` in their environment."""
    return [found for pid in proc.started_with(name, value) if (found := mark(pid)) is not None]


def kill_all(find: Callable[[], Iterable[ProcessMark]]) -> bool:
    """
    Kill the processes that `find` returns, and repeat until `find` returns none. Repeating is necessary because a
    process may fork before it is killed.

    Returns: False if some processes could not be ended within KILL_WITHIN_S.
    """
    give_up_at = time.monotonic() + KILL_WITHIN_S
    while found := list(find()):
        for process in found:
            kill(process)
        reap()
        if time.monotonic() > give_up_at:
            return False
        time.sleep(_PAUSE_S)
    return True


def reap() -> dict[int, int]:
    """
    Reap all children that have ended. Return their exit codes, keyed by process id; a negative code means that a signal
    ended the process.
    """
    exit_codes = {}
    with contextlib.suppress(ChildProcessError):
        while (reaped := os.waitpid(-1, os.WNOHANG))[0] != 0:
            exit_codes[reaped[0]] = os.waitstatus_to_exitcode(reaped[1])
    return exit_codes


def become_subreaper() -> None:
    """
    Become the parent of orphaned descendants from now on. Otherwise, a descendant whose parent ends would no longer be
    a descendant of this process.
    """
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with(parent: int) -> None:
    """
    Ask the kernel to send SIGKILL to this process when its parent ends, or even earlier: when the thread that forked
    this process ends. `parent` is the parent's id, read before the fork. If the parent has already ended, exit.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _is_dead(stat: Stat) -> bool:
    """
    Return whether the process is dead. If the main thread has ended (state Z) but other threads of the process run, the
    process is not dead.
    """
    return stat.ended and stat.threads <= 1
