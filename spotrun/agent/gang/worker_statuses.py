"""
Reads the statuses of a gang's other members for the lead. Each agent overwrites its status object every few seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spotrun.clock import Clock
from spotrun.folder.status_objects import AgentStatus, agent_key, read_status
from spotrun.run.gang import MemberName
from spotrun.store.port import Store

LOOKS_EVERY_S = 10.0
"""Seconds of run time between two reads while all members train."""
LOOKS_CLOSELY_EVERY_S = 2.0
"""Seconds of run time between two reads while the lead waits for another member."""
LOOKS_EVERY_MIN_S = 0.2
"""Minimum seconds of system time between two reads."""


class SeenStatus(NamedTuple):
    """A member's newest status. `since_s` is the time of its last change, in this agent's monotonic run time."""

    status: AgentStatus | None
    since_s: float


class WorkerStatuses:
    """A thread that reads the statuses of the other members."""

    def __init__(self, store: Store, clock: Clock, names: Sequence[MemberName]) -> None:
        self._store = store
        self._clock = clock
        self._seen = {name: SeenStatus(None, clock.monotonic()) for name in names}
        self._closely = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="others", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._closely.set()

    def look_closely(self) -> None:
        """Read the statuses more often, from now until the next trainer begins."""
        self._closely.set()

    def begins(self) -> None:
        """Begin to measure how long each member's status has not changed. Call this when a trainer has started."""
        self._closely.clear()
        now_s = self._clock.monotonic()
        self._seen = {name: SeenStatus(seen.status, now_s) for name, seen in self._seen.items()}

    @property
    def seen(self) -> Mapping[MemberName, SeenStatus]:
        return self._seen

    def _work(self) -> None:
        while not self._stop.is_set():
            for name in self._seen:
                self._look(name)
            every_s = LOOKS_CLOSELY_EVERY_S if self._closely.is_set() else LOOKS_EVERY_S
            pause_s = max(LOOKS_EVERY_MIN_S, every_s / self._clock.scale)
            if self._closely.is_set():
                self._stop.wait(pause_s)
            else:
                self._closely.wait(pause_s)

    def _look(self, name: MemberName) -> None:
        status = read_status(self._store, agent_key(name.launch, name.member), AgentStatus)
        known = self._seen[name]
        if status is not None and (known.status is None or status.sequence != known.status.sequence):
            self._seen[name] = SeenStatus(status, self._clock.monotonic())
