"""
Watches a trainer for signs of life, so that a trainer that hangs is found and ended (promise I16; failures.md R13).

During training, progress is the only sign of life. A busy processor is not, because ranks that wait for each other,
even forever, keep their processors busy. Before the first progress and after fit(), a healthy script may make no
progress for a long time, for example while it downloads or exports something. So in these phases, output and use of the
processor are signs of life too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spotrun.clock import Clock

LOOK_EVERY_S = 1.0
"""Seconds of system time between two reads of the signs of a silent trainer. Each read scans all of /proc."""
BUSY_SHARE = 0.01
"""
Share of one core above which the trainer counts as computing. A trainer that only waits uses less, even if its threads
wake up regularly to poll.
"""


@dataclass(frozen=True)
class Signs:
    """
    A trainer's signs of life. `cpu_s` is the processor time, in seconds of system time, that its processes have used.
    """

    output_bytes: int
    cpu_s: float


class Liveness:
    """Watches one trainer from the trainer's start. `read_signs` is called while the trainer reports no progress."""

    def __init__(self, clock: Clock, read_signs: Callable[[], Signs]) -> None:
        self._clock = clock
        self._read_signs = read_signs
        self._heard_s = clock.monotonic()
        self._signs = read_signs()
        self._looked_s = time.monotonic()

    def heard(self, at_s: float | None = None) -> None:
        """Record a sign of life at run time `at_s`; if it is None, the sign came now."""
        self._heard_s = self._clock.monotonic() if at_s is None else max(self._heard_s, at_s)

    def silent_s(self, *, training: bool) -> float:
        """Return the seconds of run time since the newest sign of life that counts in this phase."""
        if not training and time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._look()
        return self._clock.monotonic() - self._heard_s

    def _look(self) -> None:
        before, before_s = self._signs, self._looked_s
        self._signs, self._looked_s = self._read_signs(), time.monotonic()
        computed_s = self._signs.cpu_s - before.cpu_s
        if self._signs.output_bytes > before.output_bytes or computed_s >= BUSY_SHARE * (self._looked_s - before_s):
            self.heard()
