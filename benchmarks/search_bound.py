"""
Computes the least that has to be paid to find the cheapest type, by any rule: a bound for `benchmarks.types`.

    python -m benchmarks.search_bound [--hours 3 10] [--types 2 4] [--wrong 3] [--start 195] [--trial 0]

Everything but the speeds is known to the searcher, and nothing else is in its way: spot is never lost, prices stand,
and it knows how long the job is. To use a type it has to start one instance of it, which costs START seconds. Then it
knows the speed, or after TRIAL seconds more that are paid for nothing. A searcher among independent unknowns, paid for
one by one, cannot do better on average than by Weitzman's rule (1979, Optimal search for the best alternative): each
type has a reserve, the known cost at which its start would just not pay any more; they are tried in the order of their
reserves, until the best known costs less than all that are left.

The job takes HOURS on the fastest type by the published figures. Each true speed is the published one times a factor
between 1/WRONG and WRONG, drawn evenly in its logarithm. Shares are those above the best type in hindsight, which pays
its own start too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import combinations, product
from math import exp, log
from random import Random
from statistics import fmean

from benchmarks.arguments import at_least
from benchmarks.local_market import LocalMarket
from benchmarks.types import TYPES
from spotrun.market.published_speeds import published_speed
from spotrun.offering import CapacityType
from spotrun.policy.trials import HALVINGS

WORLDS, CELLS = 2000, 400
WITHIN = (0.03, 0.05)
Prices = dict[str, tuple[float, float]]
"""By type, USD an hour of its cheapest spot, and the published speed."""


def prices_of(seed: int = 1) -> Prices:
    offered = LocalMarket(seed, "generated", TYPES.values()).offerings(0.0)
    found = {}
    for name, instance_type in TYPES.items():
        spot = [each for each in offered if each.instance_type == instance_type]
        spot = [each for each in spot if each.capacity_type is CapacityType.SPOT]
        speed = published_speed(spot[0])
        assert speed is not None
        found[name] = (min(float(each.price_usd_per_hour) for each in spot), speed)
    return found


def reserve(median: float, cost: float, wrong: float) -> float:
    """Return the known price x of the work of an hour with E[max(0, x - c)] = cost, for a c around `median`."""
    costs = [median * exp(log(wrong) * (2 * (cell + 0.5) / CELLS - 1)) for cell in range(CELLS)]
    low, high = 0.0, max(costs) + cost
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        gain = fmean(max(0.0, middle - each) for each in costs)
        low, high = (middle, high) if gain < cost else (low, middle)
    return high


def shares(
    kinds: Sequence[str], prices: Prices, hours: float, wrong: float, paid_s: float, tries: int | None = None
) -> list[float]:
    """
    Return shares above the best in hindsight, in many worlds, of the best searcher; or of one that always tries `tries`
    types.
    """
    random = Random(0)
    work = hours * max(prices[kind][1] for kind in kinds)
    median = {kind: prices[kind][0] / prices[kind][1] for kind in kinds}
    start = {kind: prices[kind][0] * paid_s / 3600 for kind in kinds}
    reserves = {kind: reserve(median[kind], start[kind] / work, wrong) for kind in kinds}
    order, found = sorted(kinds, key=reserves.__getitem__), []
    for _ in range(WORLDS):
        true = {kind: median[kind] * exp(log(wrong) * random.uniform(-1, 1)) for kind in kinds}
        opened = [order[0]]
        for kind in order[1:]:
            pays = min(true[known] for known in opened) > reserves[kind]
            if pays if tries is None else len(opened) < tries:
                opened.append(kind)
        paid = sum(start[kind] for kind in opened) + work * min(true[kind] for kind in opened)
        found.append(paid / min(start[kind] + work * true[kind] for kind in kinds) - 1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, nargs="+", default=[3.0, 10.0])
    parser.add_argument("--types", type=at_least(2), nargs="+", default=[2, 4])
    parser.add_argument("--wrong", type=float, default=3.0)
    parser.add_argument("--start", type=float, default=195.0)
    parser.add_argument("--trial", type=float, default=0.0)
    options = parser.parse_args()
    prices = prices_of()
    for hours, count in product(options.hours, options.types):
        every = [
            share
            for kinds in combinations(prices, count)
            for share in shares(kinds, prices, hours, options.wrong, options.start + options.trial)
        ]
        within = ", ".join(f"{fmean(each <= limit for each in every):.1%} within {limit:.0%}" for limit in WITHIN)
        print(f"{hours:g} h, {count} types: {fmean(every):.1%} above the best on average, {within}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
