"""Deadlines in the runner itself: never late where on-demand alone is in time, and told where it is not."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotrun.errors import SpecInvalid
from spotrun.forecast.baselines import COMPARED
from spotrun.instance import EndedBy
from spotrun.market.world import StepSeen, World
from spotrun.offering import CapacityType
from spotrun.policy import assumptions, decide
from spotrun.policy.changeovers import changeover
from spotrun.policy.deadline import deadline_at, unreachable
from spotrun.policy.facts import Facts
from spotrun.policy.money import INTENT_LIFETIME
from spotrun.policy.pools import market_history
from spotrun.policy.workload import workload
from spotrun.report.describe import describe
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.spec.model import RunSpec
from spotrun.spec.values import COMPARED_NAMES, STRATEGY_NAMES
from spotrun.strategies.catalogue import STRATEGIES
from tests.support.decisions import MARKET, asked, decided, events_of, instance, spec
from tests.support.histories import ON_DEMAND, SPOT, START, History, offering
from tests.support.worlds import EVERYWHERE, NOWHERE, DeadlineWorld, calm, no_spot, weather

# -- never late ------------------------------------------------------------------------------------------------------


TICK_MAX_S = INTENT_LIFETIME.total_seconds() / 2
"""A runner that looks less often than that finds its intents too old."""


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, float, float, float]:
    """Steps, changeover, tick and slack in seconds; the tick is a tenth of a changeover to ten of them."""
    ratio = draw(st.sampled_from([0.1, 0.3, 1.0, 3.0, 10.0]))
    tick_s = draw(st.floats(5.0, min(TICK_MAX_S, 600.0 * ratio)))
    changeover_s = tick_s / ratio
    steps = int(max(changeover_s, tick_s) * draw(st.floats(0.5, 12.0))) + 1
    slack_s = draw(st.floats(0.0, 8.0)) * max(changeover_s, tick_s)
    return steps, changeover_s, tick_s, slack_s


def in_time_on_demand(steps: int, changeover_s: float, tick_s: float) -> float:
    """When the same run ends that never asks for anything but on-demand."""
    alone = DeadlineWorld(steps, changeover_s, tick_s, no_spot(), 1e6, strategy="on_demand_only")
    finished_s = alone.finished_s(1e6)
    assert finished_s is not None
    return finished_s


ZONE_PATTERNS = st.lists(st.sets(st.sampled_from(["local-1a", "local-1b"])), min_size=1, max_size=40)


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["ours", "greedy", "uniform_progress", "eager_fallback"])
@pytest.mark.parametrize("markets", [20, pytest.param(60, marks=pytest.mark.nightly)])
def test_no_deadline_that_on_demand_alone_meets_is_missed_whatever_the_market_does(strategy: str, markets: int) -> None:
    @settings(max_examples=markets)
    @given(job=jobs(), pattern=ZONE_PATTERNS, hold=st.floats(0.3, 20.0))
    def is_in_time(job: tuple[int, float, float, float], pattern: list[set[str]], hold: float) -> None:
        steps, changeover_s, tick_s, slack_s = job
        deadline_s = in_time_on_demand(steps, changeover_s, tick_s) + slack_s
        market = weather(pattern, hold * changeover_s)
        world = DeadlineWorld(steps, changeover_s, tick_s, market, deadline_s, strategy=strategy, return_cooldown="30s")
        finished_s = world.finished_s(deadline_s * 3)
        assert finished_s is not None
        assert finished_s <= deadline_s, f"{finished_s - deadline_s:.0f} s late; {world.bought}"

    is_in_time()


@pytest.mark.exhaustive
def test_the_property_would_see_a_run_without_a_net() -> None:
    world = DeadlineWorld(600, 60, 10, no_spot(), 4000, strategy="spot_only")
    assert world.finished_s(4500) is None
    assert world.state.deadline_lost is not None


# -- at least cost ---------------------------------------------------------------------------------------------------


def test_with_time_to_spare_the_run_moves_to_spot_once_its_work_is_known() -> None:
    world = DeadlineWorld(7200, 300, 30, calm(), 20_000)
    assert world.finished_s(20_000) is not None
    assert world.bought == ["on_demand", "spot"]


def test_a_figure_of_the_work_lets_spot_be_used_from_the_start() -> None:
    world = DeadlineWorld(7200, 300, 30, calm(), 20_000, expected_work="2h")
    assert world.finished_s(20_000) is not None
    assert world.bought == ["spot"]


def test_without_slack_on_demand_is_taken_at_once_and_kept() -> None:
    on_demand_s = in_time_on_demand(3600, 300, 30)
    world = DeadlineWorld(3600, 300, 30, calm(), on_demand_s + 30, expected_work="1h")
    assert world.finished_s(on_demand_s + 30) is not None
    assert world.bought == ["on_demand"]


@pytest.mark.exhaustive
def test_a_run_that_lost_spot_waits_for_it_while_the_deadline_leaves_time() -> None:
    away_s = 3000.0
    market = weather([EVERYWHERE, NOWHERE, *[EVERYWHERE] * 20], away_s)
    world = DeadlineWorld(7200, 300, 30, market, 40_000, expected_work="2h", strategy="greedy")
    finished_s = world.finished_s(40_000)
    assert finished_s is not None
    assert world.bought == ["spot", "spot"]
    assert finished_s > 7200 + away_s


def test_on_demand_as_the_only_policy_is_kept_to() -> None:
    history = History(deadline_at=START + timedelta(hours=9))
    wanted = spec(resources={"spot_policy": "on-demand"}, policy={"deadline": "9h", "expected_work": "1h"})
    assert asked(decided(history, wanted)) == ("local-a", ON_DEMAND)


def test_the_market_just_lost_is_not_asked_first() -> None:
    history = History(deadline_at=START + timedelta(hours=9))
    wanted = spec(policy={"deadline": "9h", "expected_work": "1h"})
    launch = history.launch()
    history.record(launch)
    history.start(launch)
    history.after(60).gone(launch, EndedBy.CLOUD)
    assert asked(decided(history, wanted, market=(offering(SPOT, "0.30"), *MARKET[1:]))) == ("local-b", SPOT)


def test_a_spot_launch_that_takes_too_long_is_given_up_for_on_demand() -> None:
    history = History(deadline_at=START + timedelta(hours=2))
    wanted = spec(policy={"deadline": "2h", "expected_work": "1h"}, checkpoint={"every": "1m"})
    (intent,) = events_of(decided(history, wanted))
    assert isinstance(intent, ev.LaunchIntended)
    launch = history.write(intent)
    history.record(launch)
    here = instance(history, launch)
    assert decided(history, wanted, [here]) == []
    history.after(45 * 60 - 200)
    (closed,) = events_of(decided(history, wanted, [here], silent={launch: timedelta(seconds=1)}))
    assert isinstance(closed, ev.LaunchClosed)
    assert closed.cause is Cause.REPLACED
    history.write(closed)
    assert asked(decided(history, wanted, [here])) == ("local-a", ON_DEMAND)


# -- what cannot be met is told --------------------------------------------------------------------------------------


def test_unreachable_deadline_is_reported_once_and_the_run_goes_on() -> None:
    world = DeadlineWorld(3600, 60, 10, calm(), 2000)
    assert world.finished_s(8000) is not None
    assert world.bought == ["on_demand"]
    told = world.state.deadline_lost
    assert told is not None
    assert told.expected_at > told.deadline_at
    entry = History().entry(told)
    assert describe(entry).startswith("the deadline cannot be met: ")


def test_passed_deadline_is_reported_without_any_measurement() -> None:
    history = History(deadline_at=START + timedelta(hours=1))
    wanted = spec(policy={"deadline": "1h"})
    assert not any(isinstance(event, ev.DeadlineOutOfReach) for event in events_of(decided(history, wanted)))
    history.after(3601)
    told = events_of(decided(history, wanted))[0]
    assert isinstance(told, ev.DeadlineOutOfReach)
    assert describe(history.entry(told)) == "the deadline has passed"
    history.write(told)
    assert not any(isinstance(event, ev.DeadlineOutOfReach) for event in events_of(decided(history, wanted)))


def test_launch_reports_a_deadline_that_even_on_demand_misses() -> None:
    wanted = spec(policy={"deadline": "3h", "expected_work": "2h"})
    assert unreachable(wanted, timedelta(hours=2)) is not None
    assert unreachable(wanted, timedelta(hours=3)) is None
    assert unreachable(spec(), timedelta()) is None


# -- what is measured ------------------------------------------------------------------------------------------------


def trained(history: History, stretches: list[float]) -> World:
    """Ten steps per stretch, which takes so many seconds; 1,000 steps in all."""
    history.running()
    history.step = 1
    for seconds in stretches:
        history.step += 10
        history.after(seconds).commit()
    seen = StepSeen(attempt=history.attempt, step=history.step, at=history.now)
    return World(offerings=MARKET, instances=(), step_seen=seen, steps_total=1000)


def test_the_work_left_is_the_pace_so_far_times_the_steps_that_remain() -> None:
    history = History()
    world = trained(history, [20.0] * 5)
    known = workload(Facts(history.state, spec(), world, history.now))
    assert known is not None
    assert known.left_s == pytest.approx(2.0 * (1000 - 51))
    assert known.doubt_s == pytest.approx(assumptions.WORK_DOUBT_MIN * known.left_s)


def test_an_uneven_pace_is_doubted_more() -> None:
    even, uneven = History(), History()
    worlds = trained(even, [20.0] * 6), trained(uneven, [5.0, 40.0, 5.0, 40.0, 5.0, 25.0])
    doubts = []
    for history, world in zip((even, uneven), worlds, strict=True):
        known = workload(Facts(history.state, spec(), world, history.now))
        assert known is not None
        doubts.append(known.doubt_s)
    assert doubts[1] > 3 * doubts[0]


def test_nothing_is_known_before_a_step_and_of_a_training_that_does_not_say_when_it_ends() -> None:
    history = History()
    assert workload(Facts(history.state, spec(), World(offerings=MARKET, instances=()), history.now)) is None
    world = trained(history, [20.0] * 5)
    endless = World(offerings=MARKET, instances=(), step_seen=world.step_seen)
    assert workload(Facts(history.state, spec(), endless, history.now)) is None


def test_lost_work_counts_as_work_left() -> None:
    history = History()
    world = trained(history, [20.0] * 3)
    ahead = StepSeen(attempt=history.attempt, step=history.step + 20, at=history.after(40).now)
    world = World(offerings=MARKET, instances=(), step_seen=ahead, steps_total=world.steps_total)
    before = workload(Facts(history.state, spec(), world, history.now))
    history.gone(history.state.attempts[history.attempt].launch, EndedBy.CLOUD)
    after = workload(Facts(history.state, spec(), world, history.now))
    assert before is not None
    assert after is not None
    assert after.left_s - before.left_s == pytest.approx(20 * 2.0)


def test_the_longest_changeover_measured_replaces_the_assumed_one() -> None:
    history = History()
    assert changeover(history.state) == assumptions.CHANGEOVER.total_seconds()
    history.running()
    assert changeover(history.state) == pytest.approx(100 * assumptions.CHANGEOVER_DOUBT)


def test_losses_and_refusals_are_remembered_against_a_pool() -> None:
    history = History()
    history.running()
    launch = history.state.attempts[history.attempt].launch
    history.after(600).gone(launch, EndedBy.CLOUD)
    world = World(offerings=MARKET, instances=())
    remembered = market_history(Facts(history.state, spec(), world, history.now))
    young = market_history(Facts(History().state, spec(), world, history.now))
    pool = "local-a/sim-gpu"
    assert remembered.expected_life_s(pool, 700, 7200) < young.expected_life_s(pool, 700, 7200)
    assert remembered.up == {"local-b/sim-gpu", "local-c/sim-gpu"} == young.up - {pool}


# -- the words of a spec ---------------------------------------------------------------------------------------------


def test_a_time_of_day_is_the_next_one_after_the_launch() -> None:
    launched = datetime(2026, 3, 1, 22, 30).astimezone()
    assert deadline_at(time(7), launched) == datetime(2026, 3, 2, 7).astimezone()
    assert deadline_at(time(23, 15), launched) == datetime(2026, 3, 1, 23, 15).astimezone()
    assert deadline_at(time(22, 30), launched) == datetime(2026, 3, 2, 22, 30).astimezone()
    assert deadline_at(timedelta(hours=8), datetime(2026, 3, 1, tzinfo=UTC)) == datetime(2026, 3, 1, 8, tzinfo=UTC)


def test_a_spec_knows_the_strategies_of_the_catalogue() -> None:
    assert set(STRATEGY_NAMES) == set(STRATEGIES)
    assert set(COMPARED_NAMES) == set(COMPARED) - set(STRATEGIES)


def test_a_run_of_before_by_a_strategy_that_is_only_compared_with_is_read_and_not_gone_on_with() -> None:
    history = History(deadline_at=START + timedelta(hours=9))
    written = {"name": "old", "workdir": "/", "train": {"run": "true"}}
    stored = RunSpec.from_dict({**written, "policy": {"deadline": "32400s", "strategy": "greedy"}})
    assert RunSpec.from_dict(stored.to_dict()) == stored
    with pytest.raises(SpecInvalid, match="jobs can no longer use strategy greedy"):
        decided(history, stored)
    history.write(ev.StopRequested(by="a test"))
    assert decided(history, stored)


def test_without_a_deadline_nothing_of_this_decides() -> None:
    history = History()
    world = World(offerings=MARKET, instances=())
    assert asked(decide(history.state, spec(), world, history.now)) == ("local-a", CapacityType.SPOT)
