"""What a plan says before money is spent: generated markets, lifetimes, and the words around them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from spotrun.clock import ScaledClock
from spotrun.creation import newborn
from spotrun.market import World
from spotrun.policy.considered import considered
from spotrun.report.forecast import cost_picture, for_machines
from spotrun.simulation.forecast import Market, Question, forecast, lifetime_market, tick_for
from spotrun.simulation.generator import generate, shape
from spotrun.simulation.plan import Plan, plan
from spotrun.simulation.ticks import on_demand_bill, simulate
from spotrun.simulation.traces import Windows
from spotrun.strategies.catalogue import STRATEGIES
from spotrun.strategies.port import Job
from tests.histories import ON_DEMAND, SPOT, START, offering
from tests.local_runs import Site
from tests.test_policy import spec

REGIONS = ("east",) * 4 + ("mid",) * 2 + ("west",) * 3
HOUR = timedelta(hours=1)
OFFERINGS = (offering(SPOT, "0.90", "local-a"), offering(SPOT, "1.00", "local-b"), offering(ON_DEMAND, "3.00"))
JOB = Job(4 * 3600.0, 8 * 3600.0, 360.0, tick_for(8 * 3600.0), 3.0, margin_s=600.0)
ONE = Market("1 zone", ("a",), ("east",), (0.9,))


def planned(lifetimes: int = 60, budget: str = "6", **policy: object) -> Plan:
    wanted = spec(policy={"deadline": "8h", **policy}, budget={"max_usd": budget})
    order = considered(newborn(wanted, ScaledClock(START, 1.0)), wanted, World(offerings=OFFERINGS, instances=()))
    return plan(wanted, OFFERINGS, 4 * HOUR, 8 * HOUR, lifetimes, epochs=12, considered=order)


# -- markets ---------------------------------------------------------------------------------------------------------


def test_generated_markets_have_the_shape_of_the_record_they_were_fitted_to() -> None:
    found = shape([generate(REGIONS, 1107, 195.0, seed) for seed in range(60)], REGIONS, 195.0)
    assert found.up_share == pytest.approx(0.66, abs=0.03)
    assert found.up_median_h == pytest.approx(0.54, abs=0.15)
    assert found.up_mean_h == pytest.approx(1.97, abs=0.2)
    assert found.again == pytest.approx(0.24, abs=0.04)
    assert found.sibling == pytest.approx(0.46, abs=0.05)
    assert found.elsewhere == pytest.approx(0.71, abs=0.06)


def test_a_seed_is_a_market_and_another_seed_another() -> None:
    first, again, other = (generate(REGIONS, 300, 195.0, seed) for seed in (7, 7, 8))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_tick_does_not_change_what_a_market_is() -> None:
    fine, coarse = (generate(REGIONS, 172_800 // tick, float(tick), 3).mean() for tick in (60, 600))
    assert fine == pytest.approx(coarse, abs=0.02)


def test_a_recorded_market_is_drawn_with_its_zones_at_the_same_moments() -> None:
    dice = np.random.default_rng(0)
    together = dice.random((4, 500, 1)) < 0.7
    up = np.concatenate([together, together, ~together], axis=2)
    record = Windows(up, np.ones(up.shape), ("a", "b", "c"), 300.0, "1 = available")
    three = Market("3", ("x", "y", "z"), ("r",) * 3, (1.0, 2.0, 3.0))
    for number in range(5):
        ticks = lifetime_market(three, JOB, 1, number, record)
        assert all(("x" in tick) == ("y" in tick) != ("z" in tick) for tick in ticks)
        assert {tick["y"] for tick in ticks if "y" in tick} == {2.0}


# -- lifetimes -------------------------------------------------------------------------------------------------------


def test_a_loss_undoes_work_and_is_counted() -> None:
    market = [{"a": 1.0}] * 20 + [{}] * 2 + [{"a": 1.0}] * 200
    whole = simulate(STRATEGIES["spot_only"], JOB, market)
    undone = simulate(STRATEGIES["spot_only"], JOB, market, rework_s=300.0)
    assert (whole.losses, undone.losses) == (1, 1)
    assert undone.rework_s == 300.0
    assert undone.finished_s is not None
    assert whole.finished_s is not None
    assert undone.finished_s - whole.finished_s == pytest.approx(300.0)
    assert whole.changeover_s == 2 * JOB.changeover_s


def test_on_demand_alone_costs_its_bill_and_ours_is_never_late_where_spot_alone_is() -> None:
    questions = [Question(name, ONE) for name in ("on_demand_only", "ours", "spot_only")]
    on_demand, ours, spot = forecast(questions, JOB, 60.0, 100, budget_usd=5.0)
    assert on_demand.cost_mean_usd == pytest.approx(on_demand_bill(JOB))
    assert (on_demand.missed, on_demand.budget_passed, on_demand.lifetimes) == (0.0, 1.0, 1)
    assert ours.missed == 0.0 < spot.missed
    assert ours.cost_p5_usd <= ours.cost_p50_usd <= ours.cost_p95_usd <= on_demand.cost_mean_usd * 1.1
    assert spot.interruptions > 0


def test_the_same_seed_gives_the_same_forecast() -> None:
    first, again, other = (forecast([Question("ours", ONE)], JOB, 60.0, 40, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


# -- the plan --------------------------------------------------------------------------------------------------------


def test_a_plan_compares_ours_with_on_demand_and_spot_in_every_set_of_markets() -> None:
    rows = [(row.strategy, row.market) for row in planned().forecasts]
    assert rows[0][0] == "ours"
    assert ("on_demand_only", "any") in rows
    assert {market for strategy, market in rows if strategy == "spot_only"} == {"1 zone", "all zones"}


def test_a_plan_for_machines_is_json_and_says_what_it_assumes() -> None:
    found = planned()
    facts = json.loads(json.dumps(for_machines(found)))
    assert facts["assumed"].startswith("Assumed: spot comes and goes as in a generator")
    assert [each["why"] for each in facts["offerings"]] == [
        "asked first: the cheapest spot",
        "where the ones before have none, or lost us",
        "when the deadline leaves no time for spot",
    ]
    ours = facts["forecasts"][0]
    assert ours["epochs_per_usd"] == pytest.approx(12 / ours["cost_mean_usd"], rel=1e-3)
    assert 0 <= ours["budget_passed"] <= 1
    assert len(cost_picture(found).splitlines()) == len(facts["forecasts"]) + 2


def test_an_endless_wait_is_null_for_machines() -> None:
    nowhere = Market("nowhere", (), (), ())
    (row,) = forecast([Question("spot_only", nowhere)], JOB, 60.0, 3)
    assert row.missed == 1.0
    facts = for_machines(Plan(HOUR, HOUR, None, (row,), (), ""))
    assert facts["forecasts"][0]["finish_p50_s"] is None


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_forecasts_a_job_and_spends_nothing(site: Site) -> None:
    job = site.job("later", extra="budget: {max_usd: 9}\n")
    facts = site.call_json("plan", job, "--deadline", "8h", "--work", "4h", "--lifetimes", "20")
    assert (facts["work_s"], facts["time_left_s"]) == (14_400, 28_800)
    assert facts["forecasts"][0]["budget_passed"] is not None
    assert not site.store.exists()
    said = site.call("plan", job, "--deadline", "8h", "--work", "4h", "--lifetimes", "20")
    assert "Cost, P5 to P95" in said


def test_the_command_says_what_it_lacks(site: Site, tmp_path: Path) -> None:
    job = site.job("later")
    assert "a forecast needs a deadline" in site.call("plan", job, code=2)
    assert "nobody knows how long" in site.call("plan", job, "--deadline", "8h", code=2)
    refusal = site.call("plan", job, "--deadline", "4h", "--work", "4h", code=2)
    assert "cannot be met even on demand" in refusal
    assert "no market windows" in site.call(
        "plan", job, "--deadline", "8h", "--work", "4h", "--traces", tmp_path / "none.npz", code=1
    )
