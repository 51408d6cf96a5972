"""Checks whether agents are still writing their status objects, for programs that read these objects repeatedly."""

from __future__ import annotations

from collections.abc import Iterable

from spotrun.clock import Clock
from spotrun.folder.status_objects import BEAT_EVERY_MIN_S, BEAT_EVERY_S, AgentStatus

MISSED = 2
"""Number of heartbeat intervals after which an agent without a new status has certainly missed a heartbeat."""


class GangHeartbeatMonitor:
    """Checks the heartbeats of all agents of an attempt. An agent is identified by its position in the list."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pulses: dict[int, HeartbeatMonitor] = {}

    def beat(self, statuses: Iterable[AgentStatus | None]) -> bool:
        """
        Return True if every agent still writes its status. `statuses` has each agent's status. The caller must have
        just read them, because a status that differs from the previous one counts as written now.
        """
        found = [
            self._pulses.setdefault(at, HeartbeatMonitor(self._clock)).beats(one) for at, one in enumerate(statuses)
        ]
        return all(found)


class HeartbeatMonitor:
    """
    Checks whether one agent still writes its status. Times are measured on the clock of this machine, not the agent's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late_s = MISSED * max(BEAT_EVERY_S, BEAT_EVERY_MIN_S * clock.scale)
        self._newest: tuple[int, int] | None = None
        self._read_s = 0.0

    def beats(self, status: AgentStatus | None) -> bool:
        """
        Return True if the agent has written a new status within the last two heartbeat intervals. The caller must have
        just read the agent's `status`.
        """
        if status is None:
            return False
        now_s, newest = self._clock.monotonic(), (status.launch, status.sequence)
        if newest != self._newest:
            self._newest, self._read_s = newest, now_s
        return now_s - self._read_s < self._late_s
