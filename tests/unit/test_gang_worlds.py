"""Whole runs of gangs: the real runner over a cloud whose places are counted, with simulated members."""

from __future__ import annotations

import pytest

from spotrun.account.summary import summarise
from spotrun.instance import EndedBy
from spotrun.run import events as ev
from tests.support.gang_worlds import (
    SIZE,
    STEPS,
    changing,
    charged_usd,
    counted,
    gang_spec,
    gang_world,
    members_by_instance,
    training_members,
)
from tests.support.small_worlds import ALL_FAULTS, STEADY, SUDDEN
from tests.support.world import Faults, SimulatedWorld
from tests.support.world.result import RunResult

LONG_S = 12 * 3600.0


def run_to_its_end(world: SimulatedWorld) -> RunResult:
    """
    Raises:
        AssertionError: something is left, or the account is not the cloud's.
    """
    result = world.run(LONG_S)
    state = world.state
    assert result.outcome == "completed"
    assert world.cloud.alive == [], "an instance was left"
    assert state.commits[-1].event.step == STEPS
    known = members_by_instance(state)
    assert set(known) == {each.instance_id for each in world.cloud.all}, "an instance without an end in the ledger"
    for each in world.cloud.all:
        gone = known[each.instance_id].gone
        assert gone is not None
        assert (gone.ended_at, gone.ended_by, gone.prices) == (each.ended_at, each.ended_by, each.prices)
    total = summarise(state, world.clock.now()).total
    assert total.spot_usd + total.on_demand_usd == charged_usd(world.cloud.all, state.created.billing)
    for attempt in state.attempts.values():
        assert len(set(attempt.names)) == SIZE
    return result


def asked(world: SimulatedWorld) -> list[tuple[int, str, bool]]:
    """How many were asked for, in which zone, and whether they were for a gang that is there."""
    intents = [launch.intent for launch in world.state.launches.values()]
    return [(each.instances, each.offering.zone, each.beside is not None) for each in intents]


def given(world: SimulatedWorld) -> list[tuple[int, str, bool]]:
    """Those of them that there were places for."""
    launches = world.state.launches.values()
    return [one for one, launch in zip(asked(world), launches, strict=True) if launch.recorded is not None]


# -- losses ------------------------------------------------------------------------------------------------------------


def test_a_gang_trains_as_one_and_is_billed_for_each() -> None:
    world = gang_world(counted("33"), timings=STEADY)
    result = run_to_its_end(world)
    assert given(world) == [(SIZE, "a", False)]
    assert (result.losses, result.steps_redone, len(world.state.voids)) == (0, 0, 0)
    assert {each.ended_by for each in world.cloud.all} == {EndedBy.ITSELF}


@pytest.mark.parametrize("at", range(SIZE))
def test_a_member_that_is_taken_with_notice_is_replaced_and_the_others_stay(at: int) -> None:
    world = gang_world(counted("55"), timings=STEADY)
    world.run(1200.0)
    world.cloud.notice(training_members(world)[at], 120.0)
    result = run_to_its_end(world)
    assert (result.losses, result.steps_redone) == (1, 0), "a notice loses no step"
    assert given(world) == [(SIZE, "a", False), (1, "a", True)]
    before, after = world.state.attempts.values()
    assert len({*before.names} & {*after.names}) == SIZE - 1


@pytest.mark.parametrize("at", range(SIZE))
def test_a_loss_without_notice_leaves_the_others_where_they_are(at: int) -> None:
    world = gang_world(counted("55"), timings=STEADY)
    world.run(1200.0)
    world.cloud.end(training_members(world)[at], EndedBy.CLOUD)
    result = run_to_its_end(world)
    assert result.losses == 1
    assert result.steps_redone > 0
    assert given(world) == [(SIZE, "a", False), (1, "a", True)]


def test_two_that_are_lost_at_once_are_one_interruption_and_one_launch() -> None:
    world = gang_world(counted("55"), timings=STEADY)
    world.run(1200.0)
    for instance_id in training_members(world)[:2]:
        world.cloud.end(instance_id, EndedBy.CLOUD)
    result = run_to_its_end(world)
    assert result.losses == 1
    assert given(world) == [(SIZE, "a", False), (2, "a", True)]


def test_member_lost_while_another_boots_is_requested_after_it() -> None:
    world = gang_world(counted("55"), timings=STEADY)
    world.run(1200.0)
    first, second, _ = training_members(world)
    world.cloud.end(first, EndedBy.CLOUD)
    world.run(1260.0)
    world.cloud.end(second, EndedBy.CLOUD)
    run_to_its_end(world)
    assert given(world) == [(SIZE, "a", False), (1, "a", True), (1, "a", True)]


@pytest.mark.parametrize("at", [0, 2])
def test_a_member_that_freezes_is_condemned_and_replaced(at: int) -> None:
    world = gang_world(counted("55"), timings=STEADY)
    world.run(1200.0)
    world.freeze(frozen := training_members(world)[at])
    result = run_to_its_end(world)
    assert members_by_instance(world.state)[frozen].condemned is not None
    assert given(world) == [(SIZE, "a", False), (1, "a", True)]
    assert result.finished_s is not None
    assert result.finished_s < STEPS + 1200


def test_a_member_that_never_wakes_up_takes_its_launch_with_it_and_another_follows() -> None:
    world = gang_world(counted("55"), timings=STEADY)
    world.run(20.0)
    for each in world.cloud.alive:
        world.freeze(each.instance_id)
    run_to_its_end(world)
    first, second = world.state.launches.values()
    assert first.closed is not None
    assert first.closed.detail == "its agent never reported"
    assert (second.intent.instances, second.attempt is not None) == (SIZE, True)


def test_gang_lost_as_a_whole_is_requested_again_in_another_zone() -> None:
    world = gang_world(counted("33", "03", "03", "03", "03", "03", "03", "03", "03"), timings=SUDDEN)
    result = run_to_its_end(world)
    assert result.losses == 1
    assert given(world) == [(SIZE, "a", False), (SIZE, "b", False)]


def test_members_that_wait_in_vain_are_released_and_the_gang_moves() -> None:
    world = gang_world(counted("33", *["23"] * 8), timings=STEADY)
    run_to_its_end(world)
    assert given(world) == [(SIZE, "a", False), (SIZE, "b", False)]
    released = [entry.event for entry in world.entries if isinstance(entry.event, ev.MemberReleased)]
    assert len(released) == SIZE - 1


@pytest.mark.exhaustive
def test_without_spot_for_all_a_gang_trains_on_demand_and_goes_back_as_a_whole() -> None:
    world = gang_world(counted("20", "20", "20", *["30"] * 9), timings=STEADY)
    result = run_to_its_end(world)
    assert result.bought == ("on_demand", "spot")
    assert given(world) == [(SIZE, "a", False), (SIZE, "a", True)]


def test_with_a_deadline_a_gang_that_has_no_time_to_wait_goes_on_demand() -> None:
    wanted = gang_spec(deadline="80m", expected_work="1h")
    world = gang_world(counted("30", "30", *["20"] * 8), timings=STEADY, wanted=wanted)
    result = run_to_its_end(world)
    assert result.bought[-1] == "on_demand"
    assert not result.missed


@pytest.mark.exhaustive
@pytest.mark.parametrize("budget_usd", [4, 12])
def test_a_gang_spends_no_more_than_its_budget(budget_usd: int) -> None:
    """An hour of three instances on spot costs three dollars, and on demand nine."""
    wanted = gang_spec(budget_usd=budget_usd)
    world = gang_world(counted("55", "45", "25", "20", *["33"] * 8), seed=4, timings=STEADY, wanted=wanted)
    result = world.run(LONG_S)
    assert (result.outcome, world.cloud.alive) in (("completed", []), ("stopped", []))
    assert result.cost_usd <= budget_usd
    assert all(launch.intent.instances in (1, 2, SIZE) for launch in world.state.launches.values())
    assert len(world.state.attempts) >= 1


def test_a_run_that_is_stopped_ends_all_members_also_those_that_boot() -> None:
    for moment_s in (40.0, 400.0, 1310.0, 1420.0):
        world = gang_world(counted("55"), timings=STEADY)
        world.run(min(moment_s, 1200.0))
        if moment_s > 1200:
            world.cloud.end(training_members(world)[0], EndedBy.CLOUD)
            world.run(moment_s)
        world.ledger("owner").append(lambda _: ev.StopRequested(by="me"))
        result = world.run(LONG_S)
        assert (result.outcome, world.cloud.alive) == ("stopped", [])


# -- accidents ---------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 8))])
def test_through_any_market_a_gang_completes_and_its_bill_is_the_clouds(seed: int) -> None:
    world = gang_world(changing(seed), seed=seed)
    run_to_its_end(world)
    assert world.state.voids == [], "nobody wrote what does not count"


@pytest.mark.exhaustive
@pytest.mark.parametrize("faults", [ALL_FAULTS, Faults(runner_killed=0.05), Faults(hidden_s=(0.0, 300.0))])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_through_any_accident_a_gang_completes_and_its_bill_is_the_clouds(seed: int, faults: Faults) -> None:
    run_to_its_end(gang_world(changing(seed), seed=seed, faults=faults))


@pytest.mark.exhaustive
def test_the_same_seed_is_the_same_world_of_a_gang() -> None:
    traces = {gang_world(changing(2), seed=2, faults=ALL_FAULTS).run(LONG_S).trace_sha256 for _ in range(2)}
    assert len(traces) == 1
