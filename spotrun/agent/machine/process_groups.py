"""
Finds and ends process groups that this agent, or an earlier one, started.

A process is identified by its id and its start time, so that another process with a reused id does not match.
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
"""Variable with the instance's id, in the environment of a trainer and of all processes that it starts."""
GONE_WITHIN_S = 30.0
_PAUSE_S = 0.01


def mark(pid: int) -> ProcessMark | None:
    """Return the mark of process `pid`, also if it is a zombie; None if it does not exist."""
    found = proc.stat(pid)
    return None if found is None else found.mark


def members(leader: int) -> list[Stat]:
    """
    Return the processes in the group of `leader`, and their descendants in other groups. For example, `torchrun` starts
    each rank in a new group.
    """
    stats = list(proc.all_stats())
    found = {each.mark.pid: each for each in stats if leader in (each.group, each.mark.pid)}
    rest = [each for each in stats if each.mark.pid not in found]
    while more := [each for each in rest if each.parent in found]:
        found |= {each.mark.pid: each for each in more}
        rest = [each for each in rest if each.mark.pid not in found]
    return list(found.values())


def cpu_s(leader: int) -> float:
    """Return the processor seconds of the group's running members and of the children that they have waited for."""
    return sum(found.cpu_s for found in members(leader))


def runs_python(leader: int) -> bool:
    """Return True if any member runs a Python interpreter, according to the name of its program file."""
    programs = (proc.program(found.mark.pid) for found in members(leader))
    return any(program.startswith(("python", "pypy")) for program in programs)


def signal_all(leader: int, number: signal.Signals) -> None:
    """Signal the whole group, then each member in another group. The caller guarantees that the id is not reused."""
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
    """Send SIGKILL to the group; harmless if it is gone. The caller guarantees that the id is not reused."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def end_left_over(path: Path, instance_id: str) -> None:
    """
    End the processes that the previous agent left running on this instance (protocol 17): the process group that the
    file at `path` names, and all processes of a trainer, found by their environment.
    """
    _end_remembered(path)
    if left := end_each(lambda: carrying(instance_id)):
        raise TimeoutError(f"processes {left} do not end")
    path.unlink(missing_ok=True)


def end_each(find: Callable[[], list[int]]) -> list[int]:
    """Send SIGKILL to the processes that `find` returns, for up to GONE_WITHIN_S. Return the remaining processes."""
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
    """Return the processes of set-up and training on instance `instance_id`, found by their initial environment."""
    return [pid for pid in proc.started_with(TRAINER_VARIABLE, instance_id) if pid != os.getpid()]
