"""
Measures the cost of a choice between types, next to the best of them in hindsight, in markets whose true speeds are
unknown to the run.

    python -m benchmarks.types [--worlds 40] [--hours 3 10 30] [--types 2 3 4] [--wrong 3] [--market calm] [--of first]

Each world is a run by the real runner and policy, as tests.support.world simulates them. The true speed of each type is
the published one, times a factor that is drawn evenly in its logarithm between 1/WRONG and WRONG. The same job runs
with the choice, and with each of its types alone, in the same market. A job takes HOURS on the fastest of its types, so
on none less; or on the cheapest per sample, or the first of the list (--of). Dollars are those of instances. A share of
.03 means 3 % more expensive.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from itertools import pairwise, product
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean, quantiles

import msgspec

from benchmarks.arguments import at_least
from benchmarks.local_market import Kind, LocalMarket
from spotrun.clouds.local.catalog import INSTANCE_TYPES, ZONES
from spotrun.market.published_speeds import published_speed
from spotrun.offering import CapacityType, Offering
from spotrun.spec.model import RunSpec
from tests.support.world import SimulatedWorld, Training

TYPES = {"T4:1": "g4dn.xlarge", "A10G:1": "g5.xlarge", "V100:1": "p3.2xlarge", "A100:1": "a2-highgpu-1g"}
ZONES_TAKEN = ZONES[:3]
STEP_S, LONGEST, IDLE_S = 1.0, 40, 180.0
"""A job that takes LONGEST times its hours is given up."""


class Case(msgspec.Struct, frozen=True):
    """One job in one world: the types in the order of the list, and how many hours it takes on which `of` them."""

    seed: int
    types: tuple[str, ...]
    hours: float
    wrong: float
    market: Kind
    of: str


class Paid(msgspec.Struct, frozen=True):
    """Dollars with the choice and with each type alone; of the choice its losses, and how often the type changed."""

    case: Case
    chosen: float
    alone: dict[str, float]
    losses: int
    changes: int

    @property
    def above_best(self) -> float:
        return self.chosen / min(self.alone.values()) - 1

    @property
    def above_first(self) -> float:
        return self.chosen / self.alone[self.case.types[0]] - 1


def speeds_of(case: Case) -> dict[str, float]:
    """Return the true speed of each type, as a multiple of that of the one that takes the job's hours."""
    random = Random(f"{case.seed}/speeds")
    wide = log(case.wrong)
    offered = {each.name: each for each in INSTANCE_TYPES}
    true = {}
    for name in TYPES:
        there = offered[TYPES[name]]
        published = published_speed(
            Offering(
                cloud="local",
                region="",
                zone="",
                instance_type=there.name,
                capacity_type=CapacityType.SPOT,
                price_usd_per_hour=Decimal(0),
                accelerators=there.accelerators,
                cpus=there.cpus,
            )
        )
        assert published is not None
        true[name] = published * exp(random.uniform(-wide, wide))
    usd = {name: float(offered[TYPES[name]].on_demand_usd_per_hour) / true[name] for name in case.types}
    fastest, cheapest = max(case.types, key=true.__getitem__), min(usd, key=usd.__getitem__)
    base = {"fastest": fastest, "cheapest": cheapest, "first": case.types[0]}[case.of]
    return {TYPES[name]: true[name] / true[base] for name in case.types}


def paid(case: Case) -> Paid:
    speeds, alone = speeds_of(case), {}
    for name in case.types:
        alone[name], _, _ = _run(case, (name,), speeds)
    chosen, losses, changes = _run(case, case.types, speeds)
    return Paid(case, chosen, alone, losses, changes)


def _run(case: Case, types: Sequence[str], speeds: dict[str, float]) -> tuple[float, int, int]:
    """Return dollars, losses, and how often an attempt was on another type than the one before."""
    job = {
        "name": "demo",
        "workdir": "/work",
        "train": {"run": "true"},
        "resources": {"accelerators": {"any_of": list(types)}},
    }
    world = SimulatedWorld(
        RunSpec.from_dict(job),
        Training(steps=round(case.hours * 3600 / STEP_S), step_s=STEP_S, speeds=speeds),
        LocalMarket(case.seed, case.market, TYPES.values()),
        seed=case.seed,
        idle_s=IDLE_S,
    )
    result = world.run(case.hours * 3600 * LONGEST)
    assert result.finished_s is not None, (case, types, result)
    state = world.state
    trained = [state.launch_of(each).intent.offering.instance_type for each in state.attempts.values()]
    changes = sum(one != other for one, other in pairwise(trained))
    return float(result.instances_usd), result.losses, changes


def cases(
    worlds: int, hours: Sequence[float], types: Sequence[int], wrong: float, market: Kind, of: str
) -> Iterator[Case]:
    """Yield the cases. The types of each world are drawn, and so is their order."""
    for (length, count), seed in product(product(hours, types), range(worlds)):
        listed = tuple(Random(f"{seed}/{count}/types").sample(list(TYPES), count))
        yield Case(seed, listed, length, wrong, market, of)


def told(found: Sequence[Paid]) -> dict[str, float]:
    """Return shares above the best and the first: means, nine tenths, and of all dollars together."""
    best, first = [each.above_best for each in found], [each.above_first for each in found]
    total, least = sum(each.chosen for each in found), sum(min(each.alone.values()) for each in found)
    return {
        "worlds": len(found),
        "above_best_of_all_dollars": total / least - 1,
        "above_best_mean": fmean(best),
        "above_best_p90": _p90(best),
        "above_best_max": max(best),
        "above_first_mean": fmean(first),
        "above_first_p90": _p90(first),
        "above_first_max": max(first),
        "dearer_than_first_by_2_percent": sum(each > 0.02 for each in first) / len(first),
        "losses": fmean(each.losses for each in found),
        "changes": fmean(each.changes for each in found),
    }


def _p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10)[-1] if len(values) > 1 else values[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=at_least(1), default=40)
    parser.add_argument("--hours", type=float, nargs="+", default=[3.0, 10.0, 30.0])
    parser.add_argument("--types", type=at_least(2), nargs="+", default=[2, 3, 4])
    parser.add_argument("--wrong", type=float, default=3.0)
    parser.add_argument("--market", choices=["generated", "calm"], default="generated")
    parser.add_argument("--of", choices=["fastest", "cheapest", "first"], default="fastest")
    parser.add_argument("--workers", type=at_least(1), default=2)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    asked = list(cases(options.worlds, options.hours, options.types, options.wrong, options.market, options.of))
    with ProcessPoolExecutor(options.workers) as pool:
        found = list(pool.map(paid, asked))
    for length, count in product(options.hours, options.types):
        here = [each for each in found if each.case.hours == length and len(each.case.types) == count]
        figures = told(here)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
        print(f"{length:g} h, {count} types: {shown}")
    if options.json:
        options.json.write_text(json.dumps([msgspec.to_builtins(each) for each in found], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
