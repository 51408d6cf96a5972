"""Lifetimes that the policy itself decides: what a forecast of a choice of kinds is made of."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from msgspec.structs import replace

from spotrun.clock import ScaledClock
from spotrun.clouds.registry import cloud_of
from spotrun.forecast import kinds, plan
from spotrun.forecast.kinds import Share, choice_of, lived_by
from spotrun.forecast.lifetimes import Drawn, Generated
from spotrun.forecast.plan import asked
from spotrun.forecast.report import as_json, expects
from spotrun.forecast.simulated_run import LifeOutcome, SimulatedRun, Truth
from spotrun.forecast.ticks import Standby
from spotrun.offering import CapacityType, Offering
from spotrun.policy.pools import name_of
from spotrun.policy.throughput import PRIOR_SPREAD
from spotrun.runner.creation import newborn
from spotrun.spec.model import RunSpec
from tests.support.decisions import spec
from tests.support.histories import ON_DEMAND, SPOT, START, offering
from tests.support.world import CalmMarket, SimulatedWorld, Timings, Training

T4, A10G = "T4:1", "A10G:1"
PRICES = {T4: ("0.16", "0.526"), A10G: ("0.30", "1.006")}
TYPES = {T4: "g4dn.xlarge", A10G: "g5.xlarge"}
HOUR_S, TICK_S = 3600.0, 600.0
STANDBY = Standby(120.0, (True, False), 600.0, unbilled_s=60.0)


def offered(kind: str, capacity_type: CapacityType = SPOT) -> Offering:
    there = offering(capacity_type, PRICES[kind][capacity_type is ON_DEMAND])
    return replace(there, accelerators=kind, instance_type=TYPES[kind], cpus=4, memory_gib=16)


MARKET = tuple(offered(kind, capacity_type) for kind in TYPES for capacity_type in (SPOT, ON_DEMAND))
POOLS = [name_of(each.pool) for each in MARKET if each.capacity_type is SPOT]
USD = np.array([float(each.price_usd_per_hour) for each in MARKET if each.capacity_type is SPOT])


def wanted(*named: str, **policy: object) -> RunSpec:
    return spec(resources={"accelerators": {"any_of": list(named)}}, policy=policy)


def lived(job: RunSpec, up: np.ndarray, hours: dict[str, float], changeover_s: float = 360.0) -> LifeOutcome:
    truth = Truth(
        work_s={TYPES[kind]: each * HOUR_S for kind, each in hours.items()},
        changeover_s=changeover_s,
        interval_s=300.0,
        standby=STANDBY,
        checkpoint_bytes=0,
        given_up_s=1000 * HOUR_S,
    )
    created = newborn(job, cloud_of(job), ScaledClock(START, 1.0)).created
    return SimulatedRun(job, created, MARKET, POOLS, Drawn(up, USD), TICK_S, truth, TICK_S).live()


ALWAYS = np.ones((100, 2), dtype=bool)


def test_a_calm_life_costs_its_start_and_its_work() -> None:
    found = lived(wanted(T4), ALWAYS, {T4: 4.0})
    assert found.outcome.finished_s == pytest.approx(4 * HOUR_S + 360, abs=2)
    assert found.outcome.cost_usd == pytest.approx(0.16 * (4 + 300 / HOUR_S), rel=0.002)
    assert (found.outcome.losses, found.shares) == (0, {TYPES[T4]: 1.0})


def test_lost_instance_is_replaced_and_rework_follows_without_a_notice() -> None:
    """Spot is away for a tick now and then. A loss at an even tick is announced, one at an odd tick is not."""
    up = ALWAYS.copy()
    up[[12, 23, 34]] = False
    found = lived(wanted(T4), up, {T4: 6.0})
    assert found.outcome.losses >= 2
    assert 0 < found.outcome.rework_s <= 150.0 * found.outcome.losses
    assert 0.16 * 6 < found.outcome.cost_usd < 0.526 * 6


def test_the_kind_that_is_truly_cheaper_does_most_of_the_work() -> None:
    for hours, most in (({T4: 20.0, A10G: 5.0}, A10G), ({T4: 20.0, A10G: 30.0}, T4)):
        found = lived(wanted(T4, A10G), ALWAYS, hours, changeover_s=180.0)
        assert found.shares[TYPES[most]] > 0.8


@pytest.mark.exhaustive
def test_a_lifetime_costs_what_the_real_runner_pays_in_the_simulated_world() -> None:
    job = wanted(T4, A10G)
    hours = {T4: 6.0, A10G: 3.0}
    steps = round(6 * HOUR_S)
    world = SimulatedWorld(
        job,
        Training(steps=steps, stall_s=0.0, speeds={TYPES[T4]: 1.0, TYPES[A10G]: 2.0}),
        CalmMarket(MARKET),
        timings=Timings(
            pending_s=(60.0, 60.0), boot_s=(60.0, 60.0), setup_s=(200.0, 200.0), restore_s=(40.0, 40.0), unannounced=0.0
        ),
        idle_s=120.0,
    )
    real = world.run(100 * HOUR_S)
    assert real.finished_s is not None
    found = lived(job, ALWAYS, hours)
    assert found.outcome.cost_usd == pytest.approx(float(real.instances_usd), rel=0.03)


def test_a_deadline_is_kept_in_a_lifetime_too() -> None:
    nowhere = np.zeros((100, 2), dtype=bool)
    found = lived(wanted(T4, A10G, deadline="8h"), nowhere, {T4: 12.0, A10G: 6.0})
    assert found.outcome.finished_s is not None
    assert found.outcome.finished_s <= 8 * HOUR_S
    assert found.shares[TYPES[A10G]] > 0.5


@pytest.mark.exhaustive
def test_the_rows_are_the_choice_each_kind_alone_and_on_demand() -> None:
    job = wanted(T4, A10G)
    created = newborn(job, cloud_of(job), ScaledClock(START, 1.0)).created
    made_of = asked(job, MARKET, timedelta(hours=3), None, created=created)
    choice = choice_of(job, MARKET, made_of, created, "ours", 0)
    rows = [(way.strategy, way.market) for way in choice.ways]
    own = [("ours", "all types"), ("ours", "T4:1 alone"), ("ours", "A10G:1 alone")]
    assert rows == [*own, ("on_demand_only", "all types")]
    first, again = (lived_by(choice, range(2), 0, Generated()) for _ in range(2))
    assert first == again
    assert [row[0].shares for row in first][1:3] == [{TYPES[T4]: 1.0}, {TYPES[A10G]: 1.0}]
    works = [kinds._work_s(choice, seed) for seed in range(200)]
    off = np.log([each[TYPES[T4]] / each[TYPES[A10G]] / choice.times[A10G] for each in works])
    assert abs(np.mean(off)) < 0.2
    assert np.std(off) == pytest.approx(PRIOR_SPREAD * 2**0.5, rel=0.15)


def test_a_plan_says_which_kind_it_expects() -> None:
    told = plan.Plan(
        work=timedelta(hours=3),
        time_left=None,
        epochs=None,
        forecasts=(),
        offerings=(),
        assumed="",
        expects=(Share(T4, 0.75), Share(A10G, 0.25)),
    )
    assert expects(told) == "Most of the work is done on T4:1 in 75% of the lifetimes, on A10G:1 in 25%."
    assert as_json(told)["expects"] == [{"kind": T4, "share": 0.75}, {"kind": A10G, "share": 0.25}]
    assert expects(replace(told, expects=())) is None
