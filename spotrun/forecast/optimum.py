"""
Computes the minimum cost that a job could have if the whole market were known in advance. No strategy can cost less.
"""

from __future__ import annotations

from math import ceil, gcd, inf

import numpy as np

from spotrun.forecast.ticks import SECONDS_PER_HOUR, Ticks
from spotrun.strategies.port import ON_DEMAND, Job


def optimum(job: Job, market: Ticks, deadlines_s: list[float], first: int = 0) -> list[float]:
    """
    Return the minimum cost in USD for each deadline. `market` is used from tick `first` on.

    The method is dynamic programming over the tick t, the place, and the used slack u: all time so far without
    progress, which consists of waits (of one tick each) and changeovers. All times are counted in units of gcd(tick,
    changeover, work) seconds, so they are whole numbers and the result is exact. g is the duration of a tick, and d
    that of a changeover. Instances that are lost or stopped during their changeover are not considered: they cost money
    without progress, and waiting for the same time costs nothing.

    Cost[place][u] is updated from tick to tick by these moves:

        continue   (t, u) -> (t + 1, u)              at the price of one tick
        wait       (t, u) -> (t + 1, u + g)          at no cost
        start      (t, u) -> (t + ceil(d/g), u + d)  at the price of these ticks; the zone must be up in all of them

    The job is done when its progress, t g - u, reaches its work. That may be within a tick.
    """
    q = gcd(int(job.tick_s), int(job.changeover_s), int(job.work_s))
    g, d, work = (round(seconds / q) for seconds in (job.tick_s, job.changeover_s, job.work_s))
    ends = [int(deadline // q) for deadline in deadlines_s]
    width = max(ends) - work + 1
    if width <= 0:
        return [inf for _ in ends]
    span = ceil(d / g)
    last = min(len(market) - first, ceil(max(ends) / g))
    places = [ON_DEMAND, *sorted({zone for spot in market[first : first + last] for zone in spot})]
    used = np.arange(width)
    unreached = np.full(width, inf)
    idle = [unreached.copy() for _ in range(last + span + 1)]
    running = {place: [unreached.copy() for _ in range(last + span + 1)] for place in places}
    idle[0][0] = 0.0
    best = [inf for _ in ends]
    to_usd = q / SECONDS_PER_HOUR

    def price(place: str, tick: int) -> float:
        if tick >= len(market) - first:
            return inf
        return job.on_demand_usd_per_hour if place == ON_DEMAND else market[first + tick].get(place, inf)

    def finish(cost: np.ndarray, at: np.ndarray) -> None:
        for number, end in enumerate(ends):
            best[number] = min(best[number], float(np.min(cost, where=at <= end, initial=inf)))

    for tick in range(last):
        here = np.minimum(idle[tick], np.min([running[place][tick] for place in places], axis=0))
        left = work - (tick * g - used)
        if width > g:
            np.minimum(idle[tick + 1][g:], here[:-g], out=idle[tick + 1][g:])
        for place in places:
            usd = price(place, tick) * to_usd
            if usd == inf:
                continue
            now, after = running[place][tick], running[place][tick + 1]
            done = left <= g
            if done.any():
                finish(np.where(done, now + usd * left, inf), tick * g + left)
            np.minimum(after, np.where(done, inf, now + usd * g), out=after)
            prices = [price(place, tick + step) * to_usd for step in range(span)]
            if width <= d or inf in prices:
                continue
            begun = here[: width - d] + sum(prices) * g
            spare = span * g - d
            over = left[: width - d] <= spare
            if over.any():
                unspent = prices[-1] * (spare - left[: width - d]) if span else 0.0
                finish(np.where(over, begun - unspent, inf), tick * g + d + left[: width - d])
            target = running[place][tick + span]
            np.minimum(target[d:], np.where(over, inf, begun), out=target[d:])
    return best
