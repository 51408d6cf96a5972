"""Computes what checkpoints and losses cost at an interval, if instances live as long as a record says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise

import numpy as np

from spotrun.intervals import auto_interval
from spotrun.market.hazard import Hazard, hazard_of

Interval = Callable[[float], float]
"""Seconds from one snapshot to the next, by the age of the instance in seconds."""


def lives_s(up: np.ndarray, tick_s: float, rng: np.random.Generator) -> list[float]:
    """
    Return the length of each stretch of spot that begins and ends in the record of one zone, in order.

    The moment of the end within the last tick is random; otherwise intervals that divide a tick would lose nothing.
    """
    turns = np.flatnonzero(np.diff(up.astype(np.int8)))
    return [float(b - a - rng.random()) * tick_s for a, b in pairwise(turns) if not up[a]]


def lost_s(life_s: float, stall_s: float, interval: Interval) -> float:
    """Return the seconds lost in one life: its stalls, and all the work since its last snapshot."""
    age_s = stalled_s = 0.0
    while age_s + (step_s := interval(age_s)) < life_s:
        age_s += step_s
        stalled_s += stall_s
    return stalled_s + life_s - age_s


def lost_by_auto(lives: Sequence[float], stall_s: float, *, by_age: bool = True) -> float:
    """Return the seconds lost by a run that learns from each loss, as with `checkpoint.every: auto`."""
    learnt = zip(lives, _learning(lives, stall_s, by_age), strict=True)
    return sum(lost_s(life, stall_s, interval) for life, interval in learnt)


def _learning(lives: Sequence[float], stall_s: float, by_age: bool) -> Iterator[Interval]:
    seen_s = 0.0
    for losses, life_s in enumerate(lives):
        yield _auto(hazard_of(timedelta(seconds=seen_s), losses), timedelta(seconds=stall_s), by_age)
        seen_s += life_s


def _auto(hazard: Hazard, stall: timedelta, by_age: bool) -> Interval:
    def interval(age_s: float) -> float:
        mean = hazard.after(timedelta(seconds=age_s if by_age else 0.0))
        return auto_interval(stall, mean, hazard.saved).total_seconds()

    return interval


def best_fixed(runs: Sequence[Sequence[float]], stall_s: float, grid_s: Sequence[float]) -> tuple[float, float]:
    """Return the fixed interval that loses least over all runs, in hindsight, and the seconds that it loses."""
    lives = np.array([life for run in runs for life in run])
    whole = [(float(np.sum((lives // each) * stall_s + lives % each)), each) for each in grid_s]
    lost, interval = min(whole)
    return interval, lost
