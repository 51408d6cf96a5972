"""
Finds and ends process groups that this agent, or an earlier one, started.

A process is identified by its id and its start time. So if the id is reused for another process, that process does not
match.
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
from spotrun.store.atomic_write import write_atomically

TRAINER_VARIABLE = "SPOTRUN_TRAINER"
"""
Variable that contains the instance's id. The agent sets it for `setup` and for trainers. All processes that these start
inherit the variable, by which the agent can find them.
"""
GONE_WITHIN_S = 30.0
_PAUSE_S = 0.01


def mark(pid: int) -> ProcessMark | None:
    """
    Return the mark of process `pid`: its id and start time. Return None if there is no such process. A process that has
    ended but is not reaped yet still has a mark.
    """
    found = proc.stat(pid)
    return None if found is None else found.mark


def members(leader: int) -> list[Stat]:
    """
    Return the processes in the group of `leader`, and their descendants in other groups. Other groups exist, for
    example, because `torchrun` starts each rank in a new group.
    """
    stats = list(proc.all_stats())
    found = {each.mark.pid: each for each in stats if leader in (each.group, each.mark.pid)}
    rest = [each for each in stats if each.mark.pid not in found]
    while more := [each for each in rest if each.parent in found]:
        found |= {each.mark.pid: each for each in more}
        rest = [each for each in rest if each.mark.pid not in found]
    return list(found.values())


def cpu_s(leader: int) -> float:
    """
    Return the processor seconds that the group's running processes have used, including those of ended children that
    they have waited for.
    """
    return sum(found.cpu_s for found in members(leader))


def runs_python(leader: int) -> bool:
    """Return True if a process of the group runs Python, judged by the name of its program file."""
    programs = (proc.program(found.mark.pid) for found in members(leader))
    return any(program.startswith(("python", "pypy")) for program in programs)


def ranks(leader: int, first: int) -> dict[int, int]:
    """
    Return the ids of the processes that train in the group of `leader`, by their ranks. They are found by the variable
    RANK or LOCAL_RANK with which they were started. Left out are `first`, the process of rank 0, the command itself,
    and processes that the ranks have started, such as the workers of loaders.
    """
    found: dict[int, int] = {}
    for each in sorted(members(leader), key=lambda each: each.mark.pid):
        variables = proc.environment(each.mark.pid)
        rank = variables.get("RANK", variables.get("LOCAL_RANK", ""))
        if rank.isdigit() and int(rank) and each.mark.pid not in (leader, first):
            found.setdefault(int(rank), each.mark.pid)
    return found


def signal_all(leader: int, number: signal.Signals) -> None:
    """
    Send a signal to the group of `leader`, and then to each of its processes that has left this group. The caller
    guarantees that the group's id is not reused.
    """
    others = [found.mark.pid for found in members(leader) if found.group != leader]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in others:
        signal_one(pid, number)


def signal_one(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process. Do nothing if the process is gone, or if another user owns it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def remember(path: Path, group: ProcessMark) -> None:
    write_atomically(path, msgspec.json.encode(group))


def kill_group(group: int) -> None:
    """
    Send SIGKILL to the group. This is harmless if the group is gone. The caller guarantees that the group's id is not
    reused.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def end_left_over(path: Path, instance_id: str) -> None:
    """
    End the processes that an earlier agent left running on this instance (protocol 17). These are the process group
    that the file at `path` names, and all processes of a trainer, which are found by their environment.
    """
    _end_remembered(path)
    if left := end_each(lambda: carrying(instance_id)):
        raise TimeoutError(f"processes {left} do not end")
    path.unlink(missing_ok=True)


def end_each(find: Callable[[], list[int]]) -> list[int]:
    """
    Send SIGKILL to the processes that `find` returns. Repeat this until it returns none, or GONE_WITHIN_S has passed.
    Return the processes that remain.
    """
    give_up_at = time.monotonic() + GONE_WITHIN_S
    while found := find():
        for pid in found:
            signal_one(pid, signal.SIGKILL)
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
    Return the ids of all processes that the job's `setup` and its trainers have started on instance `instance_id`.
    These processes have TRAINER_VARIABLE in their environment.
    """
    return [pid for pid in proc.started_with(TRAINER_VARIABLE, instance_id) if pid != os.getpid()]
