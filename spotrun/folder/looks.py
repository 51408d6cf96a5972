"""How often a runner asks a store for what changes slowly. Each look lists and writes, the dearest requests of S3."""

from __future__ import annotations

from spotrun.clock import Clock

EVERY_S = 15.0
"""Run time."""
AT_LEAST_S = 1.0
"""System time."""


class Looks:
    """The first look is due at once. A look that failed is not `taken`, so the next one stays due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._every_s = max(EVERY_S, AT_LEAST_S * clock.scale)
        self._taken_at = -self._every_s

    def due(self) -> bool:
        return self._clock.monotonic() - self._taken_at >= self._every_s

    def taken(self) -> None:
        self._taken_at = self._clock.monotonic()
