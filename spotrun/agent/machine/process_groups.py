"""
Finds and ends process groups that this agent, or the one before it, started.

A process is named by its id and its start time, so that a reused id is never taken for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from spotrun import proc
from spotrun.proc import ProcessMark, Stat
from spotrun.run.bounds import OutOfBounds, decode

TRAINER_VARIABLE = "SPOTRUN_TRAINER"
"""The variable that names the instance, in the environment of a trainer and of all that it starts."""
GONE_WITHIN_S = 30.0
_PAUSE_S = 0.01


def mark(pid: int) -> ProcessMark | None:
    """Return the process of that id, dead but unreaped ones included; None if there is none."""
    found = proc.stat(pid)
    return None if found is None else found.mark


def members(leader: int) -> list[Stat]:
    """
    Return the processes of the group of `leader`, and their descendants in groups of their own: `torchrun` puts each
    rank in one.
    """
    stats = list(proc.all_stats())
    found = {each.mark.pid: each for each in stats if leader in (each.group, each.mark.pid)}
    rest = [each for each in stats if each.mark.pid not in found]
    while more := [each for each in rest if each.parent in found]:
        found |= {each.mark.pid: each for each in more}
        rest = [each for each in rest if each.mark.pid not in found]
    return list(found.values())


def cpu_s(leader: int) -> float:
    """Return the system seconds that the group's live members and the children they have waited for have computed."""
    return sum(found.cpu_s for found in members(leader))


def runs_python(leader: int) -> bool:
    """Return True if the program of a member is an interpreter of Python, by the name of its file."""
    programs = (proc.program(found.mark.pid) for found in members(leader))
    return any(program.startswith(("python", "pypy")) for program in programs)


def signal_all(leader: int, number: signal.Signals) -> None:
    """
    Signal the whole group at once, and each member in a group of its own. The caller knows that the id is not reused.
    """
    others = [found.mark.pid for found in members(leader) if found.group != leader]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in others:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def remember(path: Path, group: ProcessMark) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(group))
    temporary.replace(path)


def kill_group(group: int) -> None:
    """
    Send SIGKILL to every process of the group; harmless if it is gone. The caller knows that the id is not reused.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def end_left_over(path: Path, instance_id: str) -> None:
    """
    End the processes that the agent before this one left running on this instance (protocol 17).

    The group is known by the file at `path`, and all of a trainer's processes by their environment.
    """
    _end_remembered(path)
    if left := end_each(lambda: carrying(instance_id)):
        raise TimeoutError(f"processes {left} do not end")
    path.unlink(missing_ok=True)


def end_each(find: Callable[[], list[int]]) -> list[int]:
    """
    Send SIGKILL to what `find` finds until it finds nothing, for a while. Return the processes that are left then.
    """
    give_up_at = time.monotonic() + GONE_WITHIN_S
    while found := find():
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > give_up_at:
            break
        time.sleep(_PAUSE_S)
    return found


def _end_remembered(path: Path) -> None:
    try:
        group = decode(path.read_bytes(), ProcessMark)
    except (FileNotFoundError, OutOfBounds):
        return
    if mark(group.pid) == group:
        kill_group(group.pid)


def carrying(instance_id: str) -> list[int]:
    """
    Return the live processes of set-up and training on that instance, by the environment that they were started with.
    """
    return [pid for pid in proc.started_with(TRAINER_VARIABLE, instance_id) if pid != os.getpid()]
