"""What a run would have cost on demand, told from its run on spot and checked by running it on demand."""

from __future__ import annotations

import random
from dataclasses import dataclass
from decimal import Decimal

import pytest

from spotrun.account.summary import Account, summarise
from spotrun.account.timeline import Activity
from spotrun.spec.model import RunSpec
from tests.support.world import SimulatedWorld, Timings, Training
from tests.support.worlds import EVERYWHERE, NOWHERE, weather

STARTS = Timings(
    pending_s=(30.0, 30.0), boot_s=(60.0, 60.0), setup_s=(75.0, 75.0), restore_s=(30.0, 30.0), unannounced=0.3
)
USD_PER_HOUR = Decimal("3.00")
"""On demand, in that market."""
PLACES = [{"local-1a"}, {"local-1b"}, NOWHERE]
"""Where spot is to be had for a while: mostly in one zone or the other, so that it is lost often."""


@dataclass(frozen=True)
class Both:
    """The totals of the same job on spot where it can be had, and on demand."""

    spot: Account
    on_demand: Account

    @property
    def error(self) -> float:
        return float(self.spot.counterfactual_usd / self.on_demand.on_demand_usd) - 1


def both(seed: int, stall_s: float) -> Both:
    rng = random.Random(seed)
    pattern = rng.choices(PLACES, weights=[3, 3, 1], k=12)
    hold_s = rng.uniform(900, 1800)
    totals = []
    for policy in ("auto", "on-demand"):
        job = {"name": "demo", "workdir": "/tmp", "train": {"run": "true"}, "resources": {"spot_policy": policy}}
        world = SimulatedWorld(
            RunSpec.model_validate(job),
            Training(steps=3 * 3600, stall_s=stall_s),
            weather([EVERYWHERE, *pattern], hold_s),
            seed=seed,
            timings=STARTS,
            idle_s=30.0,
        )
        assert world.run(1e6).outcome == "completed"
        totals.append(summarise(world.state, world.clock.now()).total)
    return Both(*totals)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [2, 4, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 1, 3, 5))])
def test_the_bill_foretold_is_the_bill_of_the_same_job_on_demand_within_a_hundredth(seed: int) -> None:
    found = both(seed, stall_s=0.3)
    assert found.spot.interruptions >= 2
    assert found.on_demand.spot_usd == 0
    assert abs(found.error) < 0.01


@pytest.mark.exhaustive
def test_counterfactual_leaves_out_only_stalls_for_checkpoints() -> None:
    """So it is never too much: spot is not flattered."""
    found = both(seed=1, stall_s=3.0)
    left_out = found.on_demand.on_demand_usd - found.spot.counterfactual_usd
    stalls = USD_PER_HOUR * Decimal(found.on_demand.times[Activity.STALL].total_seconds()) / 3600
    seconds = Decimal(30) / 3600  # whole steps, whole looks of the runner
    assert left_out > 0
    assert abs(left_out - stalls) < USD_PER_HOUR * seconds
