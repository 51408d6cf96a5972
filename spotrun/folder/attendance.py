"""
Determines which runner attends to a run: the runner that writes the run's runner status object, as its heartbeat. While
that runner is alive, no other runner writes the object. After its death, another runner may replace it.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from spotrun.clock import Clock
from spotrun.folder.status_objects import RUNNER_KEY, RunnerStatus, read_status
from spotrun.store.port import Store

UNATTENDED_AFTER = timedelta(minutes=1)
"""System time without a heartbeat after which a run counts as unattended. Most runners write a heartbeat every 15 s."""
UNATTENDED_AFTER_MAX = timedelta(minutes=6)
"""Maximum of that time, whatever interval a runner reports."""
HOST_VARIABLE = "SPOTRUN_HOST"
"""Variable that overrides the machine's name, for runners whose processes run on machines with different names."""


def own_host() -> str:
    """Return the name of this process's machine in a heartbeat."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def lasts(status: RunnerStatus) -> timedelta:
    """Return how long a heartbeat counts: until the runner has missed the next one, with some tolerance."""
    return min(max(UNATTENDED_AFTER, timedelta(seconds=2 * status.every_s)), UNATTENDED_AFTER_MAX)


def other_runner(store: Store, clock: Clock) -> RunnerStatus | None:
    """
    Return the live runner that attends to the run instead of this process; None if there is none. `clock` is the run's
    clock.

    The process that started this process in the background does not count, because it hands the run over.
    """
    status = read_status(store, RUNNER_KEY, RunnerStatus)
    if status is None or abs(clock.now() - status.at) >= lasts(status) * clock.scale:
        return None
    if status.host == own_host() and status.pid in (os.getpid(), os.getppid()):
        return None
    return None if has_died(status) else status


def has_died(status: RunnerStatus) -> bool:
    """Return True if the runner is certainly dead. A process on another machine cannot be checked."""
    import psutil

    return status.host == own_host() and not psutil.pid_exists(status.pid)


def process_of(status: RunnerStatus) -> str:
    return f"the runner in process {status.pid} on {status.host}"
