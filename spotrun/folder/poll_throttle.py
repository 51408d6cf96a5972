"""
Limits how often a runner polls data that change slowly. Each poll makes a list request and a write request, which are a
store's most expensive requests.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.clock import Clock

EVERY_S = 15.0
"""Run time between two polls."""
AT_LEAST_S = 1.0
"""Minimum system time between two polls."""


class PollThrottle:
    """
    Decides when the next poll is due. The first poll is due immediately. The caller calls `taken` after each successful
    poll. A failed poll stays due. The time since the last poll is measured on two clocks, because the monotonic clock
    may stop while a machine sleeps.
    """

    def __init__(self, clock: Clock, every_s: float = EVERY_S) -> None:
        self._clock = clock
        self._every_s = max(every_s, AT_LEAST_S * clock.scale)
        self._lasts_s = self._every_s
        self._taken: tuple[float, datetime] | None = None

    def due(self) -> bool:
        if self._taken is None:
            return True
        taken_s, taken_at = self._taken
        apart = abs(self._clock.now() - taken_at)
        return self._clock.monotonic() - taken_s >= self._lasts_s or apart >= timedelta(seconds=self._lasts_s)

    def taken(self, lasts: int = 1) -> None:
        """Record a successful poll. The next poll is due after `lasts` times the usual interval."""
        self._lasts_s = lasts * self._every_s
        self._taken = (self._clock.monotonic(), self._clock.now())
