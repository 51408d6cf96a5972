"""How often a runner asks for what changes slowly. A look at a store lists and writes, its dearest requests."""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.clock import Clock

EVERY_S = 15.0
"""Run time."""
AT_LEAST_S = 1.0
"""System time."""


class Looks:
    """
    The first look is due at once. A look that failed is not `taken`, so the next one stays due.

    Both clocks are asked: while a machine sleeps, its monotonic one may stand still.
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
        """The next look is due after so many times the usual pause."""
        self._lasts_s = lasts * self._every_s
        self._taken = (self._clock.monotonic(), self._clock.now())
