"""Whole runs in simulated worlds: the real runner, ledger and policy; a cloud, agents and accidents that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from spotrun.account.outcome import completed_epochs
from spotrun.errors import InsufficientCapacity
from spotrun.instance import EndedBy, InstanceState, LaunchRequest
from spotrun.run.billing import hourly
from spotrun.spec.model import CheckpointSpec
from tests.support.launch_requests import requested
from tests.support.manual_clock import ManualClock
from tests.support.small_worlds import (
    ALL_FAULTS,
    CHANGING,
    DEAR,
    HOUR_S,
    ON_DEMAND,
    SPOT,
    STEADY,
    SUDDEN,
    ZONES,
    market,
    spec,
    world,
)
from tests.support.world import Faults, SimulatedWorld, TickMarket, Training
from tests.support.world.cloud import SimulatedCloud
from tests.support.world.market import CalmMarket

# -- one seed, one world -----------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("faults", [Faults(), ALL_FAULTS], ids=["no faults", "all faults"])
def test_a_seed_is_a_world_down_to_the_last_entry_and_another_seed_another(faults: Faults) -> None:
    first, again, other = (world(seed, faults=faults).run(1e6) for seed in (7, 7, 8))
    assert first == again
    assert first.trace_sha256 != other.trace_sha256


@pytest.mark.exhaustive
def test_another_process_sees_the_same_world() -> None:
    """With another hash seed, so that no set's order is part of it."""
    words = "from tests.support.small_worlds import *; print(world(7, faults=ALL_FAULTS).run(1e6).trace_sha256)"
    told = subprocess.run(
        [sys.executable, "-c", words],
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert told == world(7, faults=ALL_FAULTS).run(1e6).trace_sha256 + "\n"


# -- what a run costs, and what it loses -------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_on_demand_alone_costs_what_its_seconds_come_to() -> None:
    alone = spec(strategy="on_demand_only")
    run = SimulatedWorld(alone, Training(steps=3600), market("ab"), timings=STEADY, idle_s=30.0)
    result = run.run(1e6)
    (instance,) = run.cloud.all
    assert (instance.offering.capacity_type, instance.ended_by) == (ON_DEMAND, EndedBy.ITSELF)
    assert instance.ended_at - instance.billed_from == timedelta(seconds=result.finished_s - 30)
    assert result.instances_usd == hourly(Decimal(3), instance.ended_at - instance.billed_from)
    assert result.cost_usd > result.instances_usd
    assert result.seconds["boot"] == 30 + 60
    assert result.seconds["setup"] == 60
    assert result.seconds["restore"] == 31  # the first step included
    assert sum(result.seconds.values()) == pytest.approx(result.finished_s)


def test_a_notice_loses_no_step_and_a_standby_takes_over() -> None:
    result = world(1, "ab", "ab", "b", "b", "b", "b", timings=STEADY).run(1e6)
    assert (result.losses, result.steps_redone, result.bought) == (1, 0, ("spot", "spot"))
    assert result.seconds["rework"] == 0
    assert result.seconds["boot"] < 2 * (30 + 60)


def test_a_standby_that_is_ready_in_time_costs_no_more_than_its_warm_start() -> None:
    quick = replace(STEADY, pending_s=(10.0, 10.0), boot_s=(20.0, 20.0), setup_s=(20.0, 20.0))
    result = world(1, "ab", "ab", "b", "b", "b", "b", timings=quick).run(1e6)
    assert (result.losses, result.steps_redone, result.bought) == (1, 0, ("spot", "spot"))
    assert result.seconds["boot"] == 10 + 20
    assert result.seconds["setup"] < 20 + 10  # its own, and what it waited after the last word of the one before
    assert result.seconds["restore"] == pytest.approx(31 + 6)


def test_a_notice_too_short_for_the_upload_loses_steps_and_the_ledger_says_why() -> None:
    run = SimulatedWorld(
        spec(), Training(steps=3600, upload_s=200.0), market("ab", "ab", "b", tick_s=601.5), timings=STEADY, idle_s=30.0
    )
    result = run.run(1e6)
    assert (result.outcome, result.missed) == ("completed", False)
    assert result.steps_redone > 0
    first = next(iter(run.state.attempts.values()))
    assert "the final snapshot was not durable in time" in first.end.detail


@pytest.mark.exhaustive
@pytest.mark.parametrize("every", ["auto", "5m", "40 steps"])
@pytest.mark.parametrize(
    "training",
    [
        Training(steps=120, step_s=30.0, epochs=7),
        Training(steps=3600, epochs=1, stall_s=20.0, upload_s=90.0),
        Training(steps=10, step_s=360.0, epochs=10, upload_s=0.0, stall_s=0.0),
    ],
    ids=["long steps", "slow saves", "a step an epoch"],
)
def test_a_training_of_any_shape_completes_with_each_of_its_epochs_once(training: Training, every: str) -> None:
    wanted = spec(deadline="3h").model_copy(update={"checkpoint": CheckpointSpec.model_validate({"every": every})})
    run = SimulatedWorld(wanted, training, market(*CHANGING, tick_s=601.5), seed=2, idle_s=30.0)
    result = run.run(1e6)
    assert (result.outcome, result.missed) == ("completed", False)
    assert [epoch for epoch, _ in completed_epochs(run.state)] == list(range(training.epochs))
    assert [epoch.event.step for epoch in run.state.epochs][-1] == training.steps
    first_steps_s = len(result.bought) * training.step_s  # they are on the account of the restores
    assert result.seconds["productive"] + result.seconds["rework"] + first_steps_s >= training.work_s


def test_a_loss_without_notice_loses_the_steps_since_the_last_commit() -> None:
    result = world(1, "ab", "ab", "b", "b", "b", "b", timings=SUDDEN).run(1e6)
    assert (result.losses, result.bought) == (1, ("spot", "spot"))
    assert 0 < result.steps_redone <= 5 * 60 + 10
    assert result.seconds["rework"] == pytest.approx(result.steps_redone, abs=2)
    assert result.seconds["detect"] > 0


def test_without_spot_the_deadline_is_met_on_demand() -> None:
    result = world(1, "-").run(1e6)
    assert (result.bought, result.missed) == (("on_demand",), False)
    assert result.seconds["wait"] > 10 * 60


@pytest.mark.exhaustive
def test_a_price_that_changes_is_billed_from_then_on() -> None:
    ticks = [{"a": 1.0}, {"a": 1.5}, {"a": 1.0}]
    run = SimulatedWorld(
        spec(), Training(steps=3600), TickMarket(ticks, 1200.0, ZONES, DEAR), timings=STEADY, idle_s=30.0
    )
    result = run.run(1e6)
    (instance,) = run.cloud.all
    assert [str(segment.usd_per_hour) for segment in instance.prices] == ["1.0", "1.5", "1.0"]
    billed_s = (instance.ended_at - instance.billed_from).total_seconds()
    assert float(result.instances_usd) == pytest.approx((billed_s + 0.5 * 1200) / HOUR_S, abs=1e-6)


# -- accidents ---------------------------------------------------------------------------------------------------------

ACCIDENTS = {
    "launch answers lost": Faults(launch_lost=0.8),
    "not found after the launch": Faults(hidden_s=(0.0, 300.0)),
    "a cloud that fails": Faults(cloud_fails=0.3),
    "a store that fails": Faults(store_fails=0.1),
    "a slow store": Faults(store_slow_s=0.2),
    "runners that die": Faults(runner_killed=0.03),
    "all at once": ALL_FAULTS,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("faults", ACCIDENTS.values(), ids=ACCIDENTS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_through_any_accident_a_run_completes_and_leaves_nothing(seed: int, faults: Faults) -> None:
    run = world(seed, faults=faults)
    result = run.run(1e6)
    assert result.outcome == "completed"
    state, final = run.state, run.state.commit(run.state.terminal.final_commit)
    assert final.event.step == 3600
    assert run.cloud.alive == []
    for instance in run.cloud.all:
        gone = state.launches[instance.launch].gone
        assert gone is not None, "an instance without an end in the ledger"
        assert (gone.ended_at, gone.ended_by, gone.prices) == (instance.ended_at, instance.ended_by, instance.prices)
    assert len({instance.launch for instance in run.cloud.all}) == len(run.cloud.all)


@pytest.mark.exhaustive
def test_accidents_are_seen_by_the_run_and_not_only_written_down() -> None:
    calm = world(3, timings=STEADY).run(1e6)
    dying = world(3, timings=STEADY, idle_s=30, faults=Faults(runner_killed=0.5, runner_back_s=(200, 200))).run(1e6)
    assert dying.seconds["wait"] + dying.seconds["boot"] > calm.seconds["wait"] + calm.seconds["boot"]


# -- looks that are left out -------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 2))])
def test_looks_that_would_see_nothing_new_can_be_left_out(seed: int) -> None:
    """A pool that is asked just before it has capacity is asked again 2 min later, for another start of an instance."""
    every, few = world(seed, idle_s=0.0).run(1e6), world(seed).run(1e6)
    assert few.finished_s == pytest.approx(every.finished_s, abs=120 + 60)
    assert float(few.cost_usd) == pytest.approx(float(every.cost_usd), rel=0.02)
    assert few.bought == every.bought


# -- the cloud and its market ------------------------------------------------------------------------------------------


def request(cloud: SimulatedCloud, zone: str, token: str = "t") -> LaunchRequest:
    offering = next(each for each in cloud.offerings() if (each.zone, each.capacity_type) == (zone, SPOT))
    return requested(offering, token=token, time_to_live=timedelta(days=1))


def test_the_cloud_tells_takes_and_refuses_as_its_market_says() -> None:
    clock = ManualClock()
    cloud = SimulatedCloud(clock, market("ab", "b", "ab"), STEADY)
    instance = cloud.launch(request(cloud, "a"))
    clock.advance(30)
    assert cloud.describe(instance.instance_id).state is InstanceState.RUNNING
    assert cloud.next_s() == 600 - 120
    clock.pass_to(480)
    assert cloud.seen(instance.instance_id).notice_deadline == instance.launched_at + timedelta(seconds=600)
    with pytest.raises(InsufficientCapacity):
        cloud.launch(request(cloud, "a", "told"))
    clock.pass_to(600)
    (gone,) = cloud.instances()
    assert (gone.ended_by, gone.ended_at) == (EndedBy.CLOUD, instance.launched_at + timedelta(seconds=600))
    clock.pass_to(1200)
    assert cloud.launch(request(cloud, "a", "again")).alive


def test_a_new_instance_may_not_be_listed_yet_and_its_token_finds_it() -> None:
    clock = ManualClock()
    cloud = SimulatedCloud(clock, CalmMarket([*ZONES.values(), *DEAR]), STEADY, hidden_s=(60.0, 60.0))
    wanted = request(cloud, "a")
    instance = cloud.launch(wanted)
    assert cloud.instances() == []
    assert cloud.describe(instance.instance_id) is None
    assert cloud.launch(wanted).instance_id == instance.instance_id
    clock.advance(60)
    assert [each.instance_id for each in cloud.instances()] == [instance.instance_id]


def test_market_begins_again_when_its_record_is_over() -> None:
    turning = market("a", "-", "a")
    pool = ZONES["a"].pool
    assert [turning.has(pool, at_s) for at_s in (0, 599.9, 600, 1199, 1200, 1800, 2400)] == [1, 1, 0, 0, 1, 1, 0]
    assert turning.taken_s(pool, 1300.0) == 2400.0
    assert turning.taken_s(pool, 700.0) == 700.0
    assert market("a").taken_s(pool, 5.0) == float("inf")
