"""
Determines which runner takes care of a run. As its heartbeat, that runner regularly overwrites a status object
in the run's folder. While the runner is alive, no other runner writes this object. After it has died, another runner
may take its place.
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
"""
If a runner announces a longer interval between its heartbeats, UNATTENDED_AFTER is extended, at most to this value.
After this time without a heartbeat, a run counts as unattended whatever its runner has announced.
"""
HOST_VARIABLE = "SPOTRUN_HOST"
"""
Environment variable that replaces the machine's name in heartbeats. It is for a runner whose process is started on a
different machine each time, such as a function in a cloud.
"""


def own_host() -> str:
    """Return the machine name that this process writes into a heartbeat."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def lasts(status: RunnerStatus) -> timedelta:
    """
    Return how long a runner counts as alive after a heartbeat, in system time. A runner that is silent for longer has
    clearly missed its next heartbeat.
    """
    return min(max(UNATTENDED_AFTER, timedelta(seconds=2 * status.every_s)), UNATTENDED_AFTER_MAX)


def other_runner(store: Store, clock: Clock) -> RunnerStatus | None:
    """
    Return the status of another live runner that takes care of the run; None if there is none. `clock` is the run's
    clock.

    The parent of this process does not count as another runner, because a runner that starts this process in the
    background hands the run over to it.
    """
    status = read_status(store, RUNNER_KEY, RunnerStatus)
    if status is None or abs(clock.now() - status.at) >= lasts(status) * clock.scale:
        return None
    if status.host == own_host() and status.pid in (os.getpid(), os.getppid()):
        return None
    return None if has_died(status) else status


def has_died(status: RunnerStatus) -> bool:
    """
    Return True if the runner is certainly dead. For a runner on another machine, return False, because its process
    cannot be checked from here.
    """
    import psutil

    return status.host == own_host() and not psutil.pid_exists(status.pid)


def process_of(status: RunnerStatus) -> str:
    return f"the runner in process {status.pid} on {status.host}"
