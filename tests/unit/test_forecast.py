"""What a plan says before money is spent: generated markets, lifetimes, and the words around them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from statistics import fmean

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from spotrun.account.summary import summarise
from spotrun.clock import ScaledClock
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.registry import cloud_of
from spotrun.forecast.generator import LOSSES_PER_H, generate
from spotrun.forecast.lifetime_forecast import (
    ForecastRequest,
    Inputs,
    JobUncertainty,
    forecast,
    outcomes_of,
    tick_for,
)
from spotrun.forecast.lifetimes import Generated, Lifetime, Local, Recorded, Replayed, Source, SpotPools, draw
from spotrun.forecast.measured import RunMeasurements, measured
from spotrun.forecast.page import forecast_page
from spotrun.forecast.plan import Plan, asked, plan
from spotrun.forecast.report import as_json, basis, cost_picture, time_cells, time_columns
from spotrun.forecast.ticks import LoneLosses, Standby, on_demand_bill, simulate
from spotrun.forecast.traces import Windows
from spotrun.instance import PriceSegment
from spotrun.market.gang_losses import first_of
from spotrun.market.world import World
from spotrun.offering import Offering
from spotrun.policy import assumptions
from spotrun.policy.capacity import patience
from spotrun.policy.explain import considered
from spotrun.policy.facts import Facts
from spotrun.report.tables import dollars
from spotrun.run.events import SetUp
from spotrun.runner.creation import newborn
from spotrun.strategies.catalogue import STRATEGIES
from spotrun.strategies.patient import Patient
from spotrun.strategies.port import ON_DEMAND as ON_DEMAND_PLACE
from spotrun.strategies.port import Job
from tests.support.decisions import spec
from tests.support.histories import ON_DEMAND, SPOT, START, History, offering
from tests.support.parsed_page import Page
from tests.support.report_samples import HOSTILE

REGIONS = ("east",) * 4 + ("mid",) * 2 + ("west",) * 3
HOUR = timedelta(hours=1)
OFFERINGS = (offering(SPOT, "0.90", "local-a"), offering(SPOT, "1.00", "local-b"), offering(ON_DEMAND, "3.00"))
JOB = Job(4 * 3600.0, 8 * 3600.0, 360.0, tick_for(8 * 3600.0), 3.0, margin_s=600.0)
ONE = SpotPools("1 zone", ("a",), ("east",), (0.9,))


LATER_S = 600.0
"""How long after a loss `shape` looks again."""


class Shape(msgspec.Struct, frozen=True):
    """
    What one sees of a market: hours up, and where spot is ten minutes after a loss in some zone.

    `again` in the same zone, `sibling` in another of its region, `elsewhere` in another region; None where there is
    none.
    """

    up_share: float
    up_median_h: float
    up_mean_h: float
    again: float | None
    sibling: float | None
    elsewhere: float | None


def shape(markets: Sequence[np.ndarray], regions: Sequence[str], tick_s: float) -> Shape:
    """The shape of several markets, each (tick, zone). Stretches that are cut off by the record's ends do not count."""
    later = max(1, round(LATER_S / tick_s))
    lives: list[float] = []
    seen: dict[str, list[bool]] = {"again": [], "sibling": [], "elsewhere": []}
    for up in markets:
        for zone in range(up.shape[1]):
            turns = np.flatnonzero(np.diff(up[:, zone].astype(np.int8)))
            lives += [(b - a) * tick_s / 3600 for a, b in pairwise(turns) if not up[a, zone]]
            for tick in turns[up[turns, zone]]:
                if tick + 1 + later >= len(up):
                    continue
                for other in range(up.shape[1]):
                    near = "sibling" if regions[other] == regions[zone] else "elsewhere"
                    seen["again" if other == zone else near].append(bool(up[tick + 1 + later, other]))
    share = float(np.mean([up.mean() for up in markets]))
    means = {name: float(np.mean(found)) if found else None for name, found in seen.items()}
    return Shape(share, float(np.median(lives)), float(np.mean(lives)), **means)


def lifetime(market: SpotPools, ticks: int, tick_s: float, seed: int, source: Source) -> Lifetime:
    return Lifetime(market, draw(market, ticks, tick_s, seed, source))


def planned(lifetimes: int = 60, budget: str = "6", **policy: object) -> Plan:
    """Of a job with a deadline."""
    wanted = spec(policy={"deadline": "8h", **policy}, budget={"max_usd": budget})
    world = World(offerings=OFFERINGS, instances=())
    order = considered(Facts.at_birth(newborn(wanted, cloud_of(wanted), ScaledClock(START, 1.0)), wanted, world))
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
    rng = np.random.default_rng(0)
    together = rng.random((4, 500, 1)) < 0.7
    up = np.concatenate([together, together, ~together], axis=2)
    record = Recorded("test", Windows(up, np.ones(up.shape), ("a", "b", "c"), 300.0, "1 = available"))
    three = SpotPools("3", ("x", "y", "z"), ("r",) * 3, (1.0, 2.0, 3.0))
    for number in range(5):
        ticks = lifetime(three, 300, 200.0, number, record)
        assert all(("x" in tick) == ("y" in tick) != ("z" in tick) for tick in ticks)
        assert {tick["y"] for tick in ticks if "y" in tick} == {2.0}


def test_the_prices_of_a_record_move_those_of_now() -> None:
    up = np.ones((1, 400, 1), dtype=bool)
    price = np.where(np.arange(400) < 200, 0.8, 1.6)[None, :, None]  # 1.2 in the mean
    record = Recorded("test", Windows(up, price, ("a",), 60.0, "1 = available"))
    ticks = lifetime(SpotPools("1", ("x",), ("r",), (3.0,)), 400, 60.0, 1, record)
    assert {round(tick["x"], 6) for tick in ticks} == {2.0, 4.0}


def test_the_prices_of_a_history_come_again_with_all_pools_at_the_same_moments() -> None:
    def history(*usd: str) -> tuple[PriceSegment, ...]:
        return tuple(PriceSegment(since=START + n * HOUR, usd_per_hour=Decimal(each)) for n, each in enumerate(usd))

    source = Replayed({"x": history("1", "2", "4"), "y": history("4", "2", "1")}, START + 3 * HOUR)
    three = SpotPools("3", ("x", "y", "z"), ("r",) * 3, (4.0, 1.0, 7.0))
    seen = set()
    for seed in range(3):
        drawn = source.draw(three, 6 * 60, 60.0, seed)
        seen |= {tuple(row) for row in drawn.usd.tolist()}
        assert (drawn.up == Generated().draw(three, 6 * 60, 60.0, seed).up).all()
    assert seen == {(1.0, 4.0, 7.0), (2.0, 2.0, 7.0), (4.0, 1.0, 7.0)}
    assert "in the last 3h" in source.words


def test_more_of_a_market_begins_as_less_of_it_does() -> None:
    """Forecasts draw a short stretch, and a longer one only where the job is not done in it."""
    two = SpotPools("2", ("us-east-1a/p3.2xlarge", "us-east-1b/p3.2xlarge"), ("e", "e"), (1.0, 1.0))
    rng = np.random.default_rng(0)
    record = Windows(rng.random((3, 50, 2)) < 0.7, rng.random((3, 50, 2)), ("a", "b"), 60.0, "1 = available")
    for source in (Generated(), Local(MarketConfig(kind="generated")), Recorded("test", record)):
        short, long = (lifetime(two, ticks, 60.0, 7, source) for ticks in (100, 900))
        assert list(short) == list(long)[:100]


def test_the_generated_market_of_the_local_cloud_is_what_its_instances_would_live_in() -> None:
    config = MarketConfig(seed=5, kind="generated")
    pools = tuple(f"us-east-1{zone}/p3.2xlarge" for zone in "abc")
    three = SpotPools("3", pools, ("us-east-1",) * 3, (1.0,) * 3)
    lives = [lifetime(three, 600, 60.0, seed, Local(config)) for seed in range(40)]
    share = np.mean([pool in tick for ticks in lives for tick in ticks for pool in pools])
    assert share == pytest.approx(0.70, abs=0.08)  # up 3.1 h in the mean, away 67 min
    prices = {price for tick in lives[0] for price in tick.values()}
    assert len(prices) > 5
    assert all(0.25 * 3.06 <= price <= 0.40 * 3.06 for price in prices)
    calm = lifetime(three, 600, 60.0, 0, Local(MarketConfig()))
    assert all(set(tick) == set(pools) for tick in calm)


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


def test_a_standby_at_the_notice_takes_it_off_the_changeover_and_nothing_is_done_twice() -> None:
    market = [{"a": 1.0}] * 20 + [{"b": 2.0}] * 200
    alone, warned, surprised = (
        simulate(STRATEGIES["spot_only"], JOB, market, rework_s=300.0, standby=standby)
        for standby in (None, Standby(120.0, (True,)), Standby(120.0, (False,)))
    )
    assert surprised == alone
    assert alone.finished_s is not None
    assert warned.finished_s is not None
    assert warned.rework_s == 0.0
    assert alone.finished_s - warned.finished_s == pytest.approx(120 + 300)
    saved_usd = 2.0 * 300 / 3600
    assert alone.cost_usd - warned.cost_usd == pytest.approx(saved_usd)


def test_a_move_to_spot_overlaps_with_what_it_leaves() -> None:
    market = [{}] * 5 + [{"a": 1.0}] * 300
    rule = Patient(JOB.tick_s, 2 * JOB.tick_s)
    moved = simulate(rule, JOB, market, keep_places=True, standby=Standby(120.0, (True,), 2 * JOB.tick_s))
    assert moved.places[:6] == (None, *(ON_DEMAND_PLACE,) * 4, "a")
    assert moved.changeover_s == JOB.changeover_s
    assert moved.finished_s == pytest.approx(JOB.tick_s + JOB.changeover_s + JOB.work_s)
    assert moved.finished_s is not None
    on_demand_s, spot_s = 4 * JOB.tick_s + JOB.changeover_s, moved.finished_s - 5 * JOB.tick_s
    assert moved.cost_usd == pytest.approx((3 * on_demand_s + spot_s) / 3600)


def test_spot_that_goes_before_it_is_ready_costs_money_and_no_time() -> None:
    market = [{}] * 5 + [{"a": 1.0}] + [{}] * 300
    rule = Patient(JOB.tick_s, 2 * JOB.tick_s)
    moved = simulate(rule, JOB, market, standby=Standby(120.0, (True,), 2 * JOB.tick_s))
    assert moved.losses == 0
    assert moved.finished_s == pytest.approx(JOB.tick_s + JOB.changeover_s + JOB.work_s)
    assert moved.cost_usd == pytest.approx((3 * (JOB.work_s + JOB.changeover_s) + JOB.tick_s) / 3600)


def test_spot_is_requested_once_per_cool_down_while_on_demand_runs() -> None:
    market = [{}] * 4 + [{"a": 1.0}] * 300
    rule = Patient(JOB.tick_s, 0.0)
    places = [
        simulate(rule, JOB, market, keep_places=True, standby=Standby(0.0, (True,), ticks * JOB.tick_s)).places
        for ticks in (0, 4)
    ]
    assert [found.index("a") for found in places] == [4, 5]  # asked in vain at the first tick, not the second


def test_patience_counts_from_the_notice() -> None:
    market, warned = [{"a": 1.0}] * 4 + [{}] * 9, Standby(JOB.tick_s, (True,))
    rule = Patient(3 * JOB.tick_s, None)
    places = [simulate(rule, JOB, market, keep_places=True, standby=known).places for known in (None, warned)]
    assert [found.index(ON_DEMAND_PLACE) for found in places] == [7, 6]


def test_a_boot_is_not_billed() -> None:
    market = [{"a": 1.0}] * 300
    billed, unbilled = (
        simulate(STRATEGIES["spot_only"], JOB, market, standby=Standby(120.0, (True,), 0.0, unbilled_s))
        for unbilled_s in (0.0, 100.0)
    )
    assert billed.cost_usd - unbilled.cost_usd == pytest.approx(100 / 3600)
    assert billed.finished_s == unbilled.finished_s


def test_a_start_after_one_that_trained_unpacks_its_set_up() -> None:
    packs, lost_late, lost_early = Standby(0.0, (False,), later_start=0.4), 20, 1
    for ticks, spared_s in ((lost_late, 0.6 * JOB.changeover_s), (lost_early, 0.0)):
        market = [{"a": 1.0}] * ticks + [{}] * 2 + [{"a": 1.0}] * 300
        anew, packed = (simulate(STRATEGIES["spot_only"], JOB, market, standby=s) for s in (None, packs))
        assert anew.losses == packed.losses == 1
        assert anew.finished_s is not None
        assert packed.finished_s is not None
        assert anew.finished_s - packed.finished_s == pytest.approx(spared_s)
        assert anew.cost_usd - packed.cost_usd == pytest.approx(spared_s / 3600)


@pytest.mark.exhaustive
def test_on_demand_alone_costs_its_bill_and_ours_is_never_late_where_spot_alone_is() -> None:
    questions = tuple(ForecastRequest(name, ONE) for name in ("on_demand_only", "ours", "spot_only"))
    on_demand, ours, spot = forecast(Inputs(questions, JOB, 60.0), 100, budget_usd=5.0)
    assert on_demand.cost_mean_usd == pytest.approx(on_demand_bill(JOB))
    assert (on_demand.missed, on_demand.budget_passed, on_demand.lifetimes) == (0.0, 1.0, 100)
    assert ours.missed == 0.0
    assert spot.missed is not None
    assert spot.missed > 0
    assert ours.cost_p5_usd <= ours.cost_p50_usd <= ours.cost_p95_usd <= on_demand.cost_mean_usd * 1.1
    assert spot.interruptions > 0


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_forecast() -> None:
    first, again, other = (
        forecast(Inputs((ForecastRequest("ours", ONE),), JOB, 60.0), 10, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


# -- without a deadline ----------------------------------------------------------------------------------------------


def test_a_gang_is_planned_at_the_price_of_all_its_members() -> None:
    wanted, work = spec(), timedelta(hours=8)
    one, three = (asked(wanted.model_copy(update={"num_nodes": size}), OFFERINGS, work, None) for size in (1, 3))
    assert three.job.on_demand_usd_per_hour == 3 * one.job.on_demand_usd_per_hour
    assert three.questions[0].market.prices == tuple(3 * usd for usd in one.questions[0].market.prices)


RENTED = tuple(replace(each, zone="us-east-1a", instance_type="p3.2xlarge") for each in OFFERINGS)
"""The offerings at places that the local cloud has."""


@pytest.mark.parametrize("source", [Generated(), Local(MarketConfig(kind="generated"))])
def test_more_nodes_are_interrupted_more_often_unless_each_loss_takes_a_whole_zone(source: Source) -> None:
    def lived(size: int) -> tuple[float, float]:
        wanted = spec(resources={"spot_policy": "spot"}).model_copy(update={"num_nodes": size})
        made_of = asked(wanted, RENTED[:1], 4 * HOUR, None)
        alone, *_ = outcomes_of(made_of, range(15), 0, source)
        done = [each for each in alone if each.finished_s is not None]
        return fmean(each.losses for each in done), fmean(each.cost_usd for each in done) / size

    (one, one_usd), (four, four_usd), (sixteen, sixteen_usd) = map(lived, (1, 4, 16))
    if source.takes_zones:
        assert one == four == sixteen
        assert four_usd == pytest.approx(one_usd)
    else:
        assert one + 1 < four < sixteen / 1.5
        assert one_usd * 1.02 < four_usd < sixteen_usd


def test_gang_that_loses_a_member_waits_for_its_replacement_alone() -> None:
    market, lost_at = [{"a": 4.0}] * 300, LoneLosses(4, {"a": {20}})
    standby = Standby(120.0, (False,), unbilled_s=100.0)
    rule = STRATEGIES["spot_only"]
    whole, lost, warned = (
        simulate(rule, JOB, market, rework_s=300.0, standby=each, lone_losses=losses)
        for each, losses in ((standby, LoneLosses()), (standby, lost_at), (replace(standby, warned=(True,)), lost_at))
    )
    assert [each.losses for each in (whole, lost, warned)] == [0, 1, 1]
    assert whole.finished_s is not None
    assert lost.finished_s == pytest.approx(whole.finished_s + JOB.changeover_s + 300)
    assert warned.finished_s == pytest.approx(whole.finished_s + JOB.changeover_s - 120)
    for each, twice_s in ((lost, 0.0), (warned, 120.0)):
        assert each.finished_s is not None
        paid_s = each.finished_s - whole.finished_s + (twice_s - standby.unbilled_s) / 4
        assert each.cost_usd - whole.cost_usd == pytest.approx(4.0 * paid_s / 3600)


def test_first_of_several_members_is_lost_as_often_as_in_the_records() -> None:
    assert [round(first_of(size), 1) for size in (1, 4, 8, 16)] == [1.0, 3.2, 5.1, 7.3]
    four = replace(ONE, size=4)
    drawn = draw(four, 40_000, 60.0, 7, Generated())
    assert drawn.lone_losses is not None
    assert drawn.lone_losses.sum() / (40_000 / 60) == pytest.approx(LOSSES_PER_H * (first_of(4) - 1), rel=0.15)
    less = draw(four, 900, 60.0, 7, Generated()).lone_losses
    assert less is not None
    assert (less == drawn.lone_losses[:900]).all()


@pytest.mark.exhaustive
def test_plan_of_a_gang_says_what_it_assumes_of_losses() -> None:
    def told(source: Source) -> str:
        return plan(spec().model_copy(update={"num_nodes": 4}), RENTED, HOUR, None, 2, source=source).assumed

    assert "; 4 members are interrupted 3.2 x as often as one instance, and if the zone" in told(Generated())
    assert "; each loss takes all 4 members; " in told(Local(MarketConfig(kind="generated")))


def without_deadline(lifetimes: int = 25, **resources: object) -> Plan:
    wanted = spec(resources=resources, budget={"max_usd": "6"})
    return plan(wanted, OFFERINGS, 4 * HOUR, None, lifetimes, epochs=12)


@pytest.mark.exhaustive
def test_without_a_deadline_patience_decides_and_nothing_is_late() -> None:
    found = without_deadline()
    assert {row.missed for row in found.forecasts} == {None}
    assert "late" not in time_columns(found)
    assert all(len(time_cells(found, row)) == len(time_columns(found)) for row in found.forecasts)
    facts = as_json(found)
    assert facts["time_left_s"] is None
    ours = [row for row in found.forecasts if row.strategy == "ours"]
    on_demand = next(row for row in found.forecasts if row.strategy == "on_demand_only")
    assert all(row.cost_p50_usd < on_demand.cost_mean_usd for row in ours)
    assert ours[-1].interruptions > 0


def test_patience_takes_the_spot_that_is_the_cheapest_by_now_and_stays_there() -> None:
    market = [{"a": 2.0, "b": 1.0}] * 9 + [{"a": 1.0, "b": 2.0}] * 9
    assert simulate(Patient(60.0, 60.0), JOB, market, keep_places=True).places == ("b",) * 18


@pytest.mark.exhaustive
def test_forecast_without_a_deadline_uses_the_rule_of_the_runner() -> None:
    wanted = spec(policy={"on_demand_after": "4m", "return_cooldown": "30m"})
    assert patience(wanted) == Patient(240.0, 1800.0)
    (question, *_), market = (
        forecast(Inputs((ForecastRequest("ours", ONE, patience(wanted)),), JOB, 60.0), 15),
        [{}] * 9,
    )
    never = forecast(Inputs((ForecastRequest("ours", ONE, Patient(1e9, None)),), JOB, 60.0), 15)[0]
    assert question.finish_p95_s < never.finish_p95_s
    waits = simulate(patience(wanted), JOB, market, keep_places=True).places
    assert waits[:3] == (None, ON_DEMAND_PLACE, ON_DEMAND_PLACE)  # one tick of 4 min


@pytest.mark.exhaustive
def test_a_job_that_may_only_have_spot_is_not_compared_with_falling_back() -> None:
    found = without_deadline(spot_policy="spot")
    own, alone = (
        [row.cost_mean_usd for row in found.forecasts if row.strategy == name] for name in ("ours", "spot_only")
    )
    assert own == alone
    spot = plan(spec(resources={"spot_policy": "spot"}), OFFERINGS[:2], 4 * HOUR, None, 20)
    assert "on_demand_only" not in {row.strategy for row in spot.forecasts}


# -- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_plan_compares_ours_with_on_demand_and_spot_in_every_set_of_markets() -> None:
    rows = [(row.strategy, row.market) for row in planned().forecasts]
    assert rows[0][0] == "ours"
    assert ("on_demand_only", "any") in rows
    assert {market for strategy, market in rows if strategy == "spot_only"} == {"1 zone", "all zones"}


@pytest.mark.exhaustive
def test_a_plan_for_machines_is_json_and_says_what_it_assumes() -> None:
    found = planned()
    facts = json.loads(json.dumps(as_json(found)))
    assert facts["assumed"].startswith("Assumed: spot comes and goes as in a generator")
    assert [each["why"] for each in facts["offerings"]] == [
        "asked first: the cheapest spot",
        "if those above have no capacity, or the run lost an instance there",
        "when the deadline leaves no time for spot",
    ]
    ours = facts["forecasts"][0]
    assert ours["epochs_per_usd"] == pytest.approx(12 / ours["cost_mean_usd"], rel=1e-3)
    assert 0 <= ours["budget_passed"] <= 1
    assert len(cost_picture(found).splitlines()) == len(facts["forecasts"]) + 2


def test_an_endless_wait_is_null_for_machines() -> None:
    nowhere = SpotPools("nowhere", (), (), ())
    (row,) = forecast(Inputs((ForecastRequest("spot_only", nowhere),), JOB, 60.0), 3)
    assert row.missed == 1.0
    assert math.isinf(row.finish_p50_s)
    facts = as_json(Plan(HOUR, HOUR, None, (row,), (), ""))
    assert facts["forecasts"][0]["finish_p50_s"] is None


def completed() -> History:
    """A run of one epoch and 100 steps that has completed."""
    history = History()
    history.running()
    history.step = 100
    history.after(900).epoch(0)
    history.completed(history.after(5).commit(final=True))
    return history


@pytest.mark.exhaustive
def test_measurements_of_earlier_runs_replace_assumptions() -> None:
    history = completed()
    known = measured([History().state, history.state])
    assert known.work == summarise(history.state, history.now).total.productive
    assert (known.epochs, known.changeovers_s) == (1, (100.0,))
    assert known.boot_s is not None
    assert 0 < known.boot_s < 100
    wanted = spec(policy={"deadline": "8h"})
    told, untold = (plan(wanted, OFFERINGS, 4 * HOUR, 8 * HOUR, 5, measured=one) for one in (known, measured([])))
    assert "takes 1m40s or 1.2 x less or more, as measured 1 x in earlier runs" in told.assumed
    assert "takes 6m or 1.2 x less or more, not measured yet" in untold.assumed
    on_demand = [next(r for r in found.forecasts if r.strategy == "on_demand_only") for found in (told, untold)]
    assert [row.changeover_s for row in on_demand] == pytest.approx([100.0, 360.0], rel=0.2)


def test_plan_names_its_markets_and_the_run_that_measured_the_work() -> None:
    history = completed()
    known = measured([history.state])
    assert known.work is not None
    told = plan(spec(), OFFERINGS, known.work, None, 2, measured=known)
    markets, work, own = basis(told)
    assert markets == f"These are 2 imagined markets a line: spot comes and goes {Generated().words}."
    assert "training time of demo-0123456789" in work
    cost = dollars(summarise(history.state, history.now).total.cost_usd)
    assert own == f"On its own market, demo-0123456789 cost {cost} and took 16m45s, with 0 interruptions."
    assert len(basis(plan(spec(policy={"expected_work": "1h"}), OFFERINGS, HOUR, None, 2, measured=known))) == 1


def test_a_forecast_knows_what_packs_have_spared_and_would() -> None:
    fresh = SetUp(seconds=25.0, how="run", packed_bytes=9)
    history = History()
    launch = history.running(setup=fresh)
    once = measured([history.state])
    history.after(900).gone(launch)
    history.running(setup=SetUp(seconds=5.0, how="unpacked", packed_bytes=9))
    twice = measured([history.state])
    assert once.later_start == pytest.approx(1 - (1 - assumptions.UNPACK_SHARE) * 25 / 100)
    assert twice.changeovers_s == (100.0, 120.0)  # the second with a whole set-up
    assert twice.later_start == pytest.approx(1 - 20 / 110)
    assert measured([History().state]).later_start == 1.0


def test_unpacked_setup_is_forecast_at_each_start() -> None:
    known = RunMeasurements(changeovers_s=(300.0,), setups_s=(200.0,))
    large = msgspec.structs.replace(OFFERINGS[1], accelerators="A100:8")

    def later(offerings: Sequence[Offering] = OFFERINGS, **changes: object) -> float:
        return asked(spec(**changes), offerings, HOUR, None, known).standby.later_start

    assert later(setup="make") == pytest.approx(0.4)
    assert later(setup="make", pack_setup=False) == later() == later([*OFFERINGS, large], setup="make") == 1.0
    told = plan(spec(setup="make"), OFFERINGS, HOUR, None, 5, measured=known).assumed
    assert "takes 5m or 1.2 x less or more, as measured 1 x in earlier runs, 2m once its set-up is packed" in told


@pytest.mark.exhaustive
def test_unknown_facts_of_the_job_widen_its_forecast() -> None:
    nowhere = ForecastRequest("on_demand_only", SpotPools("any", (), (), ()))
    (sure,), (unsure,) = (
        forecast(Inputs((nowhere,), JOB, 0.0, doubt), 400)
        for doubt in (JobUncertainty(), JobUncertainty(0.1, (300.0, 900.0), 1.2))
    )
    assert sure.cost_p5_usd == sure.cost_p95_usd == pytest.approx(on_demand_bill(JOB))
    assert unsure.finish_p5_s == pytest.approx(0.9 * JOB.work_s + 400, abs=300)
    assert unsure.finish_p95_s == pytest.approx(1.1 * JOB.work_s + 800, abs=300)
    assert 300 / 1.2 < unsure.changeover_s < 900 * 1.2


@pytest.mark.exhaustive
def test_the_page_is_well_formed_loads_nothing_and_escapes_what_it_is_given() -> None:
    for found in (planned(20), without_deadline(20)):
        text = forecast_page(found, HOSTILE)
        page = Page(text)
        assert "<script>alert" not in text
        assert not [attrs for _, attrs in page.tags if "src" in attrs or "href" in attrs]
        policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and "content" in attrs)
        assert policy is not None
        assert policy.startswith("default-src 'none'")
        assert len(page.cells) == 2 * (len(found.forecasts) + 1) + len(found.offerings) + 1
        assert {len(cells) for cells in page.cells[1 : len(found.forecasts) + 1]} == {6}
        assert ("late" in page.texts["th"]) == (found.time_left is not None)
