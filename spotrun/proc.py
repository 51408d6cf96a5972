"""
Processes by the environment that they were started with, as Linux tells it: proc_pid_environ(5).

Within execve(2) a process has none: its old memory is gone, and the new one is not filled yet. Who killed all processes
with a variable and did not wait for these let 7 in 100 escape that were executing one program after another.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

EXEC_WITHIN_S = 0.1
"""System time that a process may be within execve on a busy machine. One without any environment costs as much."""
_PAUSE_S = 0.001
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the kernel's include/linux/sched.h."""


def started_with(name: str, value: str) -> list[int]:
    """Ids of the live processes of this user that were started with `name=value` in their environment."""
    wanted = f"{name}={value}".encode()
    found: list[int] = []
    pending = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    give_up_at = time.monotonic() + EXEC_WITHIN_S
    while True:
        read = {pid: _environment(pid) for pid in pending}
        found += [pid for pid, environment in read.items() if environment and wanted in environment.split(b"\0")]
        pending = [pid for pid, environment in read.items() if environment == b"" and _will_have_one(pid)]
        if not pending or time.monotonic() > give_up_at:
            return sorted(found)
        time.sleep(_PAUSE_S)


def _environment(pid: int) -> bytes | None:
    """None if the process is gone, or somebody else's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None


def _will_have_one(pid: int) -> bool:
    fields = stat(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X") and not int(fields[6]) & _KERNEL_THREAD


def stat(pid: int) -> list[bytes]:
    """
    The fields of /proc/PID/stat from the third, `state`, on (proc_pid_stat(5)); empty where it is gone.

    A command's name, the second, may hold anything, so fields count from its last ')'.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
