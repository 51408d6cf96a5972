"""
Sends SIGTERM to a command, and judges from how the command exits whether it handled the signal and finished writing
its files, or was killed in the middle of its work.

A command is often a shell that runs a program. If the shell got SIGTERM, it would die immediately, and its exit code
would not show whether the program finished. If only the program got SIGTERM, the shell would continue with its next
line after the program ended. So shells are first paused with SIGSTOP, and then only the program gets SIGTERM. The
program's children do not get it, unless the program is itself a shell that catches the signal.

`targets_of` decides which processes get which signal; `Termination` sends the signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spotrun import proc
from spotrun.agent.machine import process_groups

SHELLS = frozenset({"ash", "bash", "busybox", "dash", "ksh", "mksh", "sh", "zsh"})
CODES_OF_AN_END = (0, 128 + signal.SIGTERM)
"""
Exit codes of a program that caught SIGTERM, finished its work and then ended. A program exits with the second code if
it finishes its work and then sends SIGTERM to itself, now uncaught, to end.
"""
_TERM_BIT = 1 << (signal.SIGTERM - 1)


class Process(NamedTuple):
    """A process. `catches` is True if it handles SIGTERM, or has blocked the signal in order to wait for it."""

    pid: int
    parent: int
    is_shell: bool
    catches: bool


class Targets(NamedTuple):
    """
    The processes that get SIGSTOP (`stopped`), the processes that get SIGTERM (`terminated`), and the programs that
    catch SIGTERM (`judged`). How the judged programs exit shows whether the command finished writing its files.
    """

    stopped: tuple[int, ...]
    terminated: tuple[int, ...]
    judged: tuple[int, ...]


def targets_of(leader: int, processes: Mapping[int, Process]) -> Targets:
    """
    Choose the targets among `leader` and its descendants. If no program catches SIGTERM, all programs get it. In that
    case no process is judged: SIGTERM kills all of the programs before they can finish their work.
    """
    programs = list(_programs(leader, processes))
    catching = [pid for pid in programs if processes[pid].catches]
    stopped = tuple(pid for pid in _above(leader, processes) if pid not in programs)
    terminated = list(catching or programs)
    for pid in catching:
        if processes[pid].is_shell:  # a shell handles the signal only after its child has ended
            terminated += _children(pid, processes)
    return Targets(stopped, tuple(terminated), tuple(catching))


def _programs(pid: int, processes: Mapping[int, Process]) -> Iterator[int]:
    """
    Yield the programs that `pid` and the shells below it run. A shell counts as a program if it catches SIGTERM or has
    no children.
    """
    process, children = processes.get(pid), _children(pid, processes)
    if process is None:
        return
    if not process.is_shell or process.catches or not children:
        yield pid
        return
    for child in children:
        yield from _programs(child, processes)


def _above(pid: int, processes: Mapping[int, Process]) -> Iterator[int]:
    """
    Yield `pid` and the shells below it, if they do not catch SIGTERM. In each branch, stop at the first process that is
    not such a shell.
    """
    process = processes.get(pid)
    if process is not None and process.is_shell and not process.catches:
        yield pid
        for child in _children(pid, processes):
            yield from _above(child, processes)


def _children(pid: int, processes: Mapping[int, Process]) -> list[int]:
    return [each.pid for each in processes.values() if each.parent == pid]


class Termination:
    """A SIGTERM to the command whose first process is `leader`. Constructing the object sends it."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._targets = targets_of(leader, _tree(leader))
        for pid in self._targets.stopped:
            process_groups.signal_one(pid, signal.SIGSTOP)
        for pid in self._targets.terminated:
            process_groups.signal_one(pid, signal.SIGTERM)
        self._statuses: dict[int, int] = {}

    @property
    def is_over(self) -> bool:
        """
        True if all judged processes have ended, or, if no process is judged, all processes that got SIGTERM. The exit
        status of an ended process can still be read: its parent, a shell, is paused and so has not reaped it.
        """
        awaited = self._targets.judged or self._targets.terminated
        for pid in awaited:
            found = proc.stat(pid)
            if found is None:
                continue
            if not found.ended:
                return False
            self._statuses.setdefault(pid, _exit_status(pid))
        return True

    def ended_well(self, leaders_code: int) -> bool:
        """
        Return True if every program that catches SIGTERM (`Targets.judged`) exited in a way that shows that it handled
        the signal; False if there is no such program. `leaders_code` is the exit code of the command's first process,
        negative if a signal killed it.
        """
        codes = [
            leaders_code if pid == self._leader else os.waitstatus_to_exitcode(self._statuses.get(pid, 1 << 8))
            for pid in self._targets.judged
        ]
        return bool(codes) and all(code in CODES_OF_AN_END or code == -signal.SIGTERM for code in codes)


def _tree(leader: int) -> dict[int, Process]:
    """Return `leader` and its descendants, without those that have ended."""
    parents = {each.mark.pid: each.parent for each in proc.all_stats() if not each.ended}
    found, pending = {}, [leader] if leader in parents else []
    while pending:
        pid = pending.pop()
        found[pid] = Process(pid, parents[pid], _is_shell(pid), _catches(pid))
        pending += [child for child, parent in parents.items() if parent == pid]
    return found


def _is_shell(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() in SHELLS
    return False


def _catches(pid: int) -> bool:
    """
    Return True if the process catches SIGTERM, judged by its masks of caught and blocked signals (proc_pid_status(5)).
    """
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        masks = [int(line.split()[1], 16) for line in status if line.startswith(("SigCgt:", "SigBlk:"))]
        return any(mask & _TERM_BIT for mask in masks)
    return False


def _exit_status(pid: int) -> int:
    """Return the exit status of a process that has ended and is not reaped yet: the last field of proc_pid_stat(5)."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").split()[-1])
    return 1 << 8
