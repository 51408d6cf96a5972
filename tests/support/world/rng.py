"""Chance in a world: each draw is a function of the world's seed and of what it is for, whatever was drawn before."""

from __future__ import annotations

from math import inf
from random import Random

Range = tuple[float, float]
"""The least and the most; every value between is equally likely."""


class Rng:
    """Equal seeds and names give equal draws: a strategy that rents more changes nobody else's luck."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def between(self, limits: Range, *names: object) -> float:
        low, high = limits
        return low if low == high else self._random(names).uniform(low, high)

    def happens(self, share: float, *names: object) -> bool:
        """True in `share` of all cases, 0 to 1."""
        return share > 0 and self._random(names).random() < share

    def waiting_s(self, per_hour: float, *names: object) -> float:
        """Seconds until an event that happens `per_hour` times an hour; inf if it never does."""
        return inf if per_hour <= 0 else self._random(names).expovariate(per_hour / 3600)

    def _random(self, names: tuple[object, ...]) -> Random:
        return Random("/".join(str(each) for each in (self.seed, *names)))
