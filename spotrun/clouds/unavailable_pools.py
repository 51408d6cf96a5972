"""Keeps track of the pools that a cloud has reported as unavailable. A driver does not offer them for a while."""

from __future__ import annotations

from typing import NamedTuple

from spotrun.clock import Clock
from spotrun.offering import Pool

FIRST_S, MAX_S = 600.0, 3600.0
"""
First and maximum number of seconds for which a pool is not offered. The time doubles with each refusal, up to the
maximum. Even after the longest pause, the pool is offered again: it may have capacity by then, or the refusal may have
been a mistake.
"""


class _Pause(NamedTuple):
    until_s: float
    lasts_s: float


class UnavailablePools:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[Pool, _Pause] = {}

    def add(self, pool: Pool) -> None:
        before = self._pauses.get(pool)
        lasts_s = FIRST_S if before is None else min(2 * before.lasts_s, MAX_S)
        self._pauses[pool] = _Pause(self._clock.monotonic() + lasts_s, lasts_s)

    def has(self, pool: Pool) -> bool:
        pause = self._pauses.get(pool)
        return pause is not None and self._clock.monotonic() < pause.until_s
