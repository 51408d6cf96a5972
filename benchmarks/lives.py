"""What checkpoints and losses cost a training whose instances live as a record says, at one interval or another."""

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
    How long each stretch of spot lasted, in order, of those that begin and end in the record of one zone.

    Where in its last tick one ended is drawn: intervals that divide a tick would lose nothing otherwise.
    """
    turns = np.flatnonzero(np.diff(up.astype(np.int8)))
    return [float(b - a - rng.random()) * tick_s for a, b in pairwise(turns) if not up[a]]


def lost_s(life_s: float, stall_s: float, interval: Interval) -> float:
    """The stalls of one life, and what its end undoes: all since the last snapshot."""
    age_s = stalled_s = 0.0
    while age_s + (step_s := interval(age_s)) < life_s:
        age_s += step_s
        stalled_s += stall_s
    return stalled_s + life_s - age_s


def lost_by_auto(lives: Sequence[float], stall_s: float, *, by_age: bool = True) -> float:
    """One run that is lost again and again and learns from each loss, as `checkpoint.every: auto` does."""
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
    """The one interval that would have lost least over all runs, in hindsight, and what it would have lost."""
    lives = np.array([life for run in runs for life in run])
    whole = [(float(np.sum((lives // each) * stall_s + lives % each)), each) for each in grid_s]
    lost, interval = min(whole)
    return interval, lost
