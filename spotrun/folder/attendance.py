"""
Which runner attends to a run: the one whose heartbeat is the runner's status object. Any other that looks after the run
leaves the object to it, and takes its place when it has died.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from spotrun.clock import Clock
from spotrun.folder.status_objects import RUNNER_KEY, RunnerStatus, read_status
from spotrun.store.port import Store

UNATTENDED_AFTER = timedelta(minutes=1)
"""System time without a sign of life; most runners give one every 15 s."""
UNATTENDED_AFTER_MAX = timedelta(minutes=6)
"""The same, whatever a runner says of itself."""
HOST_VARIABLE = "SPOTRUN_HOST"
"""The variable with another name of the machine, where each process of one runner gets a machine of another name."""


def own_host() -> str:
    """How the machine of this process is called in a sign of life."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def lasts(status: RunnerStatus) -> timedelta:
    """How long a sign of life counts: until the runner has missed one, which may be a little late."""
    return min(max(UNATTENDED_AFTER, timedelta(seconds=2 * status.every_s)), UNATTENDED_AFTER_MAX)


def other_runner(store: Store, clock: Clock) -> RunnerStatus | None:
    """
    The living runner that attends to the run in the place of this process; None if there is none. `clock` is the run's.

    The process that started this one in the background hands over to it, so it counts no more.
    """
    status = read_status(store, RUNNER_KEY, RunnerStatus)
    if status is None or abs(clock.now() - status.at) >= lasts(status) * clock.scale:
        return None
    if status.host == own_host() and status.pid in (os.getpid(), os.getppid()):
        return None
    return None if has_died(status) else status


def has_died(status: RunnerStatus) -> bool:
    """Whether that is known: nobody here can see the processes of another machine."""
    import psutil

    return status.host == own_host() and not psutil.pid_exists(status.pid)


def process_of(status: RunnerStatus) -> str:
    return f"the runner in process {status.pid} on {status.host}"
