"""Which market to take and when: stories of each strategy, and the promise that none is late."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotrun.forecast.baselines import COMPARED
from spotrun.forecast.optimum import optimum
from spotrun.forecast.ticks import Outcome, Ticks, on_demand_bill, simulate
from spotrun.strategies.history import MarketHistory, region_of
from spotrun.strategies.port import ON_DEMAND, Choice, Job, Situation
from spotrun.strategies.safety_net import SafetyNet

TICK_S = 300.0
JOB = Job(work_s=6000.0, deadline_s=9000.0, changeover_s=300.0, tick_s=TICK_S, on_demand_usd_per_hour=3.0)
NEVER_LATE = [name for name in COMPARED if name != "spot_only"]


def market(pattern: str, **more: str) -> Ticks:
    """One letter per tick: # spot in zone a at $1, . none; repeated to be long enough. Further zones by name."""
    zones = {"a": pattern, **more}
    return [{name: 1.0 for name, up in zones.items() if up[tick % len(up)] == "#"} for tick in range(200)]


def run(name: str, pattern: str, job: Job = JOB, **more: str) -> Outcome:
    return simulate(COMPARED[name], job, market(pattern, **more), keep_places=True)


# -- never late ------------------------------------------------------------------------------------------------------


class AnyWish:
    """A strategy that wants whatever comes next on its list: the worst that a safety net can be asked to hold."""

    def __init__(self, wishes: list[int]) -> None:
        self.wishes = wishes

    def choose(self, situation: Situation) -> Choice:
        wish = self.wishes[int(situation.elapsed_s // situation.job.tick_s) % len(self.wishes)]
        return [None, ON_DEMAND, *situation.spot][wish % (2 + len(situation.spot))]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Job, Ticks]:
    """A job that on-demand alone can finish in time, and any market."""
    changeover_s = draw(st.floats(10.0, 2000.0))
    tick_s = changeover_s * draw(st.floats(0.1, 10.0))
    work_s = tick_s * draw(st.floats(0.2, 40.0))
    slack_s = draw(st.floats(0.0, 20.0)) * max(changeover_s, tick_s)
    job = Job(work_s, work_s + changeover_s + slack_s, changeover_s, tick_s, 3.0)
    pattern = draw(st.lists(st.sets(st.sampled_from("abc")), min_size=1, max_size=60))
    prices = {zone: draw(st.floats(0.1, 3.5)) for zone in "abc"}
    ticks = int(job.deadline_s / tick_s) + 3
    return job, [{zone: prices[zone] for zone in sorted(pattern[tick % len(pattern)])} for tick in range(ticks)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NEVER_LATE)
@settings(max_examples=60, deadline=None)
@given(world=worlds())
def test_no_strategy_is_late_whatever_the_market_does(name: str, world: tuple[Job, Ticks]) -> None:
    job, ticks = world
    assert not simulate(COMPARED[name], job, ticks).missed(job)


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None)
@given(world=worlds(), wishes=st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_safety_net_meets_the_deadline_under_any_wish(world: tuple[Job, Ticks], wishes: list[int]) -> None:
    job, ticks = world
    assert not simulate(SafetyNet(AnyWish(wishes)), job, ticks).missed(job)


def test_the_property_would_see_a_strategy_without_a_net() -> None:
    assert run("spot_only", ".").missed(JOB)
    assert simulate(AnyWish([0]), JOB, market("#")).missed(JOB)


def test_doubt_about_the_work_left_widens_the_net() -> None:
    doubtful = Job(JOB.work_s, JOB.deadline_s, JOB.changeover_s, TICK_S, 3.0, margin_s=900.0)
    waits = [run("greedy", ".", job).places.index(ON_DEMAND) for job in (JOB, doubtful)]
    assert waits[0] - waits[1] == 3


# -- what each is known for ------------------------------------------------------------------------------------------


def test_on_demand_only_pays_exactly_the_bill_that_all_are_compared_with() -> None:
    outcome = run("on_demand_only", "#")
    assert outcome.cost_usd == pytest.approx(on_demand_bill(JOB))
    assert (outcome.starts, outcome.finished_s) == (1, 6300.0)


@pytest.mark.parametrize("name", [name for name in COMPARED if name != "on_demand_only"])
def test_where_spot_never_goes_away_all_others_just_stay_on_it(name: str) -> None:
    outcome = run(name, "#")
    assert outcome.starts == 1
    assert outcome.cost_usd == pytest.approx(on_demand_bill(JOB) / 3)


def test_spot_only_waits_for_ever() -> None:
    assert run("spot_only", "#####..............").on_demand_progress_s == 0


def test_sticky_fallback_never_comes_back() -> None:
    places = run("sticky_fallback", "####.###############").places
    assert places[:5] == ("a", "a", "a", "a", ON_DEMAND)
    assert set(places[4:]) == {ON_DEMAND}


def test_eager_fallback_comes_back_at_once() -> None:
    assert run("eager_fallback", "####.###############").places[3:6] == ("a", ON_DEMAND, "a")


def test_greedy_waits_until_the_last_moment_and_then_pays_to_the_end() -> None:
    places = run("greedy", "." * 8 + "#" * 30).places
    assert places[:8] == (None,) * 8
    late = run("greedy", "." * 9 + "#" * 30).places
    assert set(late[8:]) == {ON_DEMAND}


def test_uniform_progress_pays_early_to_keep_to_its_line() -> None:
    places = run("uniform_progress", "." * 6 + "#" * 30).places
    assert places[:2] == (None, ON_DEMAND)


def test_uniform_progress_returns_to_spot_only_when_ahead_by_two_changeovers() -> None:
    market_back_early = "." * 2 + "#" * 60
    with_hysteresis = run("uniform_progress", market_back_early).places
    without = run("uniform_progress_no_hysteresis", market_back_early).places
    assert with_hysteresis.index("a") > without.index("a")


# -- ours ------------------------------------------------------------------------------------------------------------


def test_ours_waits_while_slack_lasts_and_then_pays_before_the_last_moment() -> None:
    ours, greedy = run("ours", ".").places, run("greedy", ".").places
    assert 0 < ours.index(ON_DEMAND) < greedy.index(ON_DEMAND)


def test_the_reserve_shrinks_with_the_work_left() -> None:
    """The same slack is too little at the start and enough near the end."""
    history = MarketHistory()

    def asked(work_left_s: float) -> Choice:
        elapsed_s = JOB.deadline_s - work_left_s - 1200.0
        return COMPARED["ours"].choose(Situation(JOB, elapsed_s, work_left_s, None, True, {}, history))

    assert asked(6000.0) == ON_DEMAND
    assert asked(1200.0) is None


def test_the_market_just_lost_is_not_asked_first() -> None:
    history = MarketHistory().observed({"a", "b"}, 0.0).observed({"b"}, 3000.0).observed({"a", "b"}, 3300.0)
    back = Situation(JOB, 3300.0, 3300.0, None, True, {"a": 1.0, "b": 1.0}, history)
    assert COMPARED["ours"].choose(back) == "b"
    assert COMPARED["greedy"].choose(back) == "a"


def test_a_cheaper_zone_is_taken_when_it_pays_for_the_changeover() -> None:
    history = MarketHistory().observed({"a", "b"}, 0.0)
    job = Job(20000.0, 40000.0, 300.0, TICK_S, 3.0)

    def asked(price_b: float) -> Choice:
        return COMPARED["ours"].choose(Situation(job, 3000.0, 17000.0, "a", True, {"a": 1.0, "b": price_b}, history))

    assert asked(0.97) == "a"
    assert asked(0.5) == "b"


def test_a_move_that_pays_with_slack_to_spare_does_not_pay_for_the_last_of_it() -> None:
    history = MarketHistory().observed({"a", "b"}, 0.0)

    def asked(slack_s: float) -> Choice:
        job = Job(20000.0, 20000.0 + slack_s, 300.0, TICK_S, 3.0)
        return COMPARED["ours"].choose(Situation(job, 3000.0, 17000.0, "a", True, {"a": 1.0, "b": 0.8}, history))

    assert asked(20000.0) == "b"
    assert asked(1000.0) == "a"


def test_fallback_does_not_flap() -> None:
    """Spot that comes for one tick in two would restart an eager job at every tick."""
    long = Job(30000.0, 34000.0, 300.0, TICK_S, 3.0)
    ours, eager = run("ours", "#.", long), run("eager_fallback", "#.", long)
    assert not ours.missed(long)
    assert ours.starts <= 12
    assert ours.cost_usd <= eager.cost_usd
    returns = [number for number, place in enumerate(ours.places[1:], 1) if place != ours.places[number - 1]]
    assert not [number for number in returns if ours.places[number - 1] == ON_DEMAND][3:]


def test_spot_that_saves_next_to_nothing_is_not_worth_a_changeover() -> None:
    history = MarketHistory().observed({"a"}, 0.0)
    job = Job(6000.0, 12000.0, 1800.0, TICK_S, 3.0)
    asked = Situation(job, 300.0, 5700.0, ON_DEMAND, True, {"a": 2.9}, history)
    assert COMPARED["ours"].choose(asked) == ON_DEMAND


@given(slack_s=st.floats(0.0, 9000.0), dearer=st.floats(1.0, 2.0))
def test_run_does_not_return_to_spot_dearer_than_on_demand(slack_s: float, dearer: float) -> None:
    job = Job(6000.0, 6000.0 + slack_s, 60.0, TICK_S, 3.0)
    asked = Situation(job, 0.0, 6000.0, ON_DEMAND, True, {"a": 3.0 * dearer}, MarketHistory().observed({"a"}, 0.0))
    assert COMPARED["ours"].choose(asked) == ON_DEMAND


def test_pool_that_lasted_is_expected_to_last_and_one_lost_often_is_not() -> None:
    young = MarketHistory().observed({"a"}, 0.0)
    flaky = young
    for turn in range(1, 7):
        flaky = flaky.observed({"a"} if turn % 2 == 0 else (), turn * 600.0)
    lives = [history.expected_life_s("a", 3600.0, 36000.0) for history in (flaky, MarketHistory(), young)]
    assert lives == sorted(lives)
    assert young.expected_life_s("a", 3600.0, 36000.0) > young.expected_life_s("a", 60.0, 36000.0)


def test_spot_lasts_where_its_neighbours_have_some_and_not_where_they_lost_it() -> None:
    """Capacity is a region's before it is a zone's."""

    def life(up_first: set[str], up_now: set[str]) -> float:
        history = MarketHistory().observed(up_first, 0.0).observed(up_now, 3000.0)
        return history.expected_life_s("west-1a", 3600.0, 36000.0)

    alone, beside = life({"west-1a"}, {"west-1a"}), life({"west-1a", "west-1b"}, {"west-1a", "west-1b"})
    lost_beside = life({"west-1a", "west-1b"}, {"west-1a"})
    assert lost_beside < alone < beside
    assert life({"west-1a", "west-2b"}, {"west-1a"}) == alone == life({"west-1a", "west-2b"}, {"west-1a", "west-2b"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("us-east-1a", "us-east-1b"),
        ("us-central1-a", "us-central1-f"),
        ("us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge"),
    ],
)
def test_the_zones_of_a_region_are_known_by_their_names(one: str, other: str) -> None:
    assert region_of(one) == region_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("us-east-1a", "us-east-2a"), ("us-east-1a/g5.xlarge", "us-east-1b/g6.xlarge"), ("a", "b")],
)
def test_names_of_different_regions_are_not_confused(one: str, other: str) -> None:
    assert region_of(one) != region_of(other)


@given(st.lists(st.sets(st.sampled_from("ab")), min_size=1, max_size=20), st.integers(1, 5))
def test_history_does_not_depend_on_how_often_one_looks(seen: list[set[str]], looks: int) -> None:
    once, often = MarketHistory(), MarketHistory()
    for tick, up in enumerate(seen):
        once = once.observed(up, tick * 600.0)
        for look in range(looks):
            often = often.observed(up, tick * 600.0 + look)
    assert once == often


# -- the exact optimum -----------------------------------------------------------------------------------------------


def brute_force(job: Job, ticks: Ticks) -> float:
    """The least cost over every sequence of places, by trying them all."""
    best = inf

    def go(tick: int, place: Choice, changeover_s: float, work_s: float, usd: float) -> None:
        nonlocal best
        if usd >= best or tick >= len(ticks):
            return
        for next_place in (None, ON_DEMAND, *ticks[tick]):
            if next_place is None:
                go(tick + 1, None, 0.0, work_s, usd)
                continue
            wait_s = changeover_s if next_place == place else job.changeover_s
            busy_s = min(job.tick_s, wait_s + work_s)
            price = job.on_demand_usd_per_hour if next_place == ON_DEMAND else ticks[tick][next_place]
            paid = usd + price * busy_s / 3600
            if wait_s + work_s <= job.tick_s:
                if tick * job.tick_s + busy_s <= job.deadline_s:
                    best = min(best, paid)
            else:
                left_s = work_s - max(0.0, busy_s - wait_s)
                go(tick + 1, next_place, max(0.0, wait_s - busy_s), left_s, paid)

    go(0, None, 0.0, job.work_s, 0.0)
    return best


@pytest.mark.exhaustive
@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(
        st.dictionaries(st.sampled_from("ab"), st.sampled_from([0.5, 1.0, 2.0]), max_size=2), min_size=8, max_size=8
    ),
    st.sampled_from([60.0, 120.0, 180.0, 300.0]),
    st.sampled_from([240.0, 360.0, 600.0]),
    st.integers(0, 4),
)
def test_the_optimum_equals_brute_force(ticks: Ticks, changeover_s: float, work_s: float, spare: int) -> None:
    deadline_s = min(work_s + changeover_s + spare * 90.0, 8 * 120.0)
    job = Job(work_s, deadline_s, changeover_s, 120.0, 3.0)
    assert optimum(job, ticks, [deadline_s])[0] == pytest.approx(brute_force(job, ticks))


@settings(max_examples=30, deadline=None)
@given(st.text("#.", min_size=5, max_size=40), st.text("#.", min_size=5, max_size=40))
def test_no_strategy_beats_the_optimum(a: str, b: str) -> None:
    ticks = market(a, b=b)
    least = optimum(JOB, ticks, [JOB.deadline_s])[0]
    assert all(least <= simulate(COMPARED[name], JOB, ticks).cost_usd + 1e-9 for name in NEVER_LATE)


def test_brute_force_and_optimum_agree_that_a_hopeless_deadline_costs_the_world() -> None:
    job = Job(600.0, 600.0, 60.0, 120.0, 3.0)
    for pattern in product("#.", repeat=3):
        assert optimum(job, market("".join(pattern)), [600.0]) == [inf]
