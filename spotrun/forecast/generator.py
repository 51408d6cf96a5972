"""
Generates spot markets from a seed: semi-Markov, heavy-tailed, and correlated within a region.

A zone alternates between periods with capacity, of length UP_MIN + lognormal(UP_MEDIAN, UP_SIGMA), and periods without,
of length DOWN_MIN + lognormal(DOWN_MEDIAN, DOWN_SIGMA). When a zone loses its capacity, each other zone of its region
(a sibling) loses its own with probability TOGETHER. These parameters were fitted to a public record of nine V100 zones
(2023). The table compares figures of the record with figures of generated markets; tests/support/market_shape.py
measures both. "up" is the share of time with capacity. "median" and "mean" are the durations of periods with capacity.
The next three columns are the shares of zones that have capacity 10 minutes after a loss.

                  up     median   mean    10 min after a loss: same zone, sibling, other region    8 h without a loss
    record        0.66   0.54 h   1.97 h  0.24                 0.46               0.71             0.31
    generated     0.67   0.65 h   1.91 h  0.25                 0.48               0.68             0.19

Median and mean count only periods that lie completely within a window of 60 h. The last column shows that real zones
keep their capacity for 8 h more often than generated zones do. So forecasts from generated markets expect slightly too
many losses.

These markets are those of one instance. A gang is interrupted more often, because the loss of any member stops it
(spotrun/market/gang_losses.py). In addition to the losses of its zone, it loses members while the zone has capacity
(`lone_losses`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np

from spotrun.market.gang_losses import first_of

UP_MIN_S, UP_MEDIAN_S, UP_SIGMA = 585.0, 2800.0, 2.5
DOWN_MIN_S, DOWN_MEDIAN_S, DOWN_SIGMA = 350.0, 1000.0, 1.7
TOGETHER = 0.28
STRETCH_MAX_S = 96 * 3600.0
"""
Maximum length, in seconds, of a period with capacity or without it. The distributions have heavy tails, so without a
limit a few periods would be far longer than the record (60 h).
"""
LOSSES_PER_H = 0.29
"""Losses of an instance per hour with capacity, in the public record of nine V100 zones."""
WARM_UP_S = 2 * 86_400.0
"""
Age of the market, in seconds, when the job starts. If the market began with the job, every job would start at the
beginning of the zones' first periods.
"""


def generate(regions: Sequence[str], ticks: int, tick_s: float, seed: int) -> np.ndarray:
    """
    Return a market: a boolean array of shape (tick, zone), True where the zone has spot in the tick. `regions` lists
    the region of each zone.
    """
    rng = np.random.default_rng(seed)
    start = int(WARM_UP_S // tick_s)
    up = np.zeros((start + ticks, len(regions)), dtype=bool)
    until = np.zeros(len(regions))
    has = np.zeros(len(regions), dtype=bool)
    same = [
        [other for other in range(len(regions)) if other != zone and regions[other] == regions[zone]]
        for zone in range(len(regions))
    ]
    end_s = (start + ticks) * tick_s
    now_s = 0.0
    while now_s < end_s:
        zone = int(until.argmin())
        first, now_s = int(np.ceil(now_s / tick_s)), float(until[zone])
        up[first : int(np.ceil(now_s / tick_s))] = has
        lost = [zone, *(other for other in same[zone] if has[other] and rng.random() < TOGETHER)] if has[zone] else []
        for each in lost:
            has[each], until[each] = False, now_s + _down_s(rng)
        if not lost:
            has[zone], until[zone] = True, now_s + _up_s(rng)
    return up[start:]


def _up_s(rng: np.random.Generator) -> float:
    return min(STRETCH_MAX_S, UP_MIN_S + float(rng.lognormal(np.log(UP_MEDIAN_S), UP_SIGMA)))


def _down_s(rng: np.random.Generator) -> float:
    return min(STRETCH_MAX_S, DOWN_MIN_S + float(rng.lognormal(np.log(DOWN_MEDIAN_S), DOWN_SIGMA)))


def lone_losses(shape: tuple[int, int], tick_s: float, size: int, seed: int) -> np.ndarray:
    """
    Return a boolean array of `shape` (tick, zone), True where a gang of `size` instances loses a member in the tick
    although the zone keeps its capacity. The zone's own losses are not among them.
    """
    per_tick = LOSSES_PER_H * (first_of(size) - 1) * tick_s / 3600
    return np.asarray(np.random.default_rng((seed, 5)).random(shape) < 1 - exp(-per_tick))
