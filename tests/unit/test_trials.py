"""Which kind of a choice is tried, and when an instance is left for one of another kind."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby

import pytest
from msgspec.structs import replace

from spotrun.account.summary import assumptions
from spotrun.instance import EndedBy
from spotrun.market.wishes import suitable
from spotrun.market.world import World
from spotrun.offering import CapacityType, Offering
from spotrun.policy.assumptions import TRIAL
from spotrun.policy.capacity import Chosen, choose_capacity
from spotrun.policy.changeovers import changeover
from spotrun.policy.facts import Facts
from spotrun.policy.kind_moves import move_to_another_kind
from spotrun.policy.ranking import all_spot_work, spot_now, spot_work, trial_of
from spotrun.policy.trials import (
    EXPLORED,
    Until,
    begun_with,
    best_known,
    expected_gain,
    lost_usd,
    reserve_usd,
    worth_a_trial,
)
from spotrun.run import events as ev
from spotrun.spec.model import RunSpec
from spotrun.spec.values import Accelerators
from tests.support.decisions import decided, events_of, spec
from tests.support.histories import ON_DEMAND, SPOT, History, offering
from tests.support.world import CalmMarket, SimulatedWorld, Training

T4, A10G, V100 = "T4:1", "A10G:1", "V100:1"
PRICES = {T4: ("0.16", "0.526"), A10G: ("0.30", "1.006"), V100: ("0.92", "3.06")}
TYPES = {T4: "g4dn.xlarge", A10G: "g5.xlarge", V100: "p3.2xlarge"}


def offered(kind: str, capacity_type: CapacityType = SPOT, price: str = "") -> Offering:
    spot, on_demand = PRICES[kind]
    usual = spot if capacity_type is SPOT else on_demand
    there = offering(capacity_type, price or usual)
    return replace(there, accelerators=kind, instance_type=TYPES[kind], cpus=4, memory_gib=16)


MARKET = tuple(offered(kind, capacity_type) for kind in PRICES for capacity_type in (SPOT, ON_DEMAND))


def wanted(*kinds: str, **more: object) -> RunSpec:
    return spec(resources={"accelerators": {"any_of": list(kinds)}}, **more)


def facts_of(history: History, job: RunSpec, hours: float, market: tuple[Offering, ...] = MARKET) -> Facts:
    """The training takes so many hours at a step a second."""
    there = tuple(suitable(market, job))
    return Facts(history.state, job, World(offerings=there, instances=(), steps_total=hours * 3600), history.now)


def begins(history: History, kind: str) -> int:
    there = offered(kind)
    return history.running(SPOT, PRICES[kind][0], accelerators=kind, instance_type=there.instance_type)


def trains(history: History, step_s: float, steps: int = 60, commits: int = 4) -> History:
    for _ in range(commits):
        history.after(steps * step_s)
        history.step += steps
        history.commit()
    return history


def lost(history: History, launch: int) -> History:
    history.gone(launch, EndedBy.CLOUD, ended_at=history.now)
    return history.after(1200)


# -- what to begin with ----------------------------------------------------------------------------------------------


def test_a_run_begins_with_the_cheapest_belief_that_costs_no_more_an_hour_than_the_first() -> None:
    facts = facts_of(History(), wanted(V100, T4, A10G), 10)
    assert begun_with(facts, spot_work(facts)) == Accelerators("T4")


def test_a_dearer_kind_is_not_begun_with_unless_its_loss_is_known_to_be_small() -> None:
    """By what is believed, a V100 at this price is the cheaper one; nobody knows how long the job is."""
    market = (offered(T4), offered(V100, price="0.20"))
    unknown = facts_of(History(), wanted(T4, V100), 10, market)
    assert spot_now(unknown)[0].accelerators == T4
    long = wanted(T4, V100, policy={"expected_work": "60h"})
    assert spot_now(facts_of(History(), long, 60, market))[0].accelerators == V100
    short = wanted(T4, V100, policy={"expected_work": "1h"})
    assert spot_now(facts_of(History(), short, 1, market))[0].accelerators == T4


# -- trials ----------------------------------------------------------------------------------------------------------


def test_expected_gain_is_none_where_intervals_do_not_overlap_and_grows_with_doubt() -> None:
    assert expected_gain(1.0, 20.0, 0.5) < 1e-6
    assert expected_gain(1.0, 0.5, 1e-6) == pytest.approx(0.5)
    assert 0 < expected_gain(1.0, 1.0, 0.3) < expected_gain(1.0, 1.0, 0.6)


def test_the_next_interruption_is_used_to_try_the_kind_whose_interval_overlaps() -> None:
    history = History()
    launch = begins(history, T4)
    facts = facts_of(lost(trains(history, 1.0), launch), wanted(T4, A10G), 20)
    first = spot_now(facts)[0]
    trial = trial_of(facts, first)
    assert (first.accelerators, best_known(facts, spot_work(facts))) == (A10G, Accelerators("T4"))
    assert trial is not None
    assert trial.saves_usd > trial.loses_usd
    chosen = choose_capacity(facts)
    assert isinstance(chosen, Chosen)
    assert chosen.because.startswith("A10G:1 is tried: this is expected to save $")


def test_of_two_kinds_the_one_with_the_least_reserve_is_tried_first() -> None:
    """At its reserve a known cost makes a trial just not pay. A believed cost that is lower, or less sure, has less."""
    assert expected_gain(reserve_usd(1.0, 0.5, 0.05), 1.0, 0.5) == pytest.approx(0.05)
    assert reserve_usd(0.8, 0.5, 0.05) < reserve_usd(1.0, 0.5, 0.05) < reserve_usd(1.0, 0.5, 0.1)
    assert reserve_usd(1.0, 0.9, 0.05) < reserve_usd(1.0, 0.5, 0.05)
    history = History()
    launch = begins(history, T4)
    market = (*MARKET[:2], offered(A10G, price="0.25"), offered(V100, price="0.50"))
    facts = facts_of(lost(trains(history, 1.0), launch), wanted(T4, A10G, V100), 40, market)
    trial = worth_a_trial(facts, all_spot_work(facts), spot_work(facts))
    assert trial is not None
    assert trial.kind == Accelerators("A10G")
    cheaper = (*MARKET[:2], offered(A10G, price="0.25"), offered(V100, price="0.30"))
    facts = facts_of(history, wanted(T4, A10G, V100), 40, cheaper)
    other = worth_a_trial(facts, all_spot_work(facts), spot_work(facts))
    assert other is not None
    assert other.kind == Accelerators("V100")


def test_at_an_interruption_a_trial_costs_the_dearer_start_and_what_makes_no_progress() -> None:
    """A V100 starts as long as a T4 and costs six times as much meanwhile."""
    history = History()
    launch = begins(history, T4)
    facts = facts_of(lost(trains(history, 1.0), launch), wanted(T4, V100), 200)
    trial = worth_a_trial(facts, all_spot_work(facts), spot_work(facts))
    assert trial is not None
    start_h = changeover(facts.state) / 3600
    stays_h = start_h + TRIAL.total_seconds() / 3600
    assert trial.loses_usd == pytest.approx((0.92 - 0.16) * start_h + 0.92 * stays_h + 0.16 * start_h)


def test_a_kind_that_is_far_dearer_by_any_belief_is_not_tried() -> None:
    history = History()
    launch = begins(history, T4)
    market = (*MARKET[:4], offered(V100, price="9.00"))
    facts = facts_of(lost(trains(history, 1.0), launch), wanted(T4, V100), 20, market)
    assert worth_a_trial(facts, all_spot_work(facts), spot_work(facts)) is None


def test_trials_lose_no_more_than_their_share_of_the_run() -> None:
    """A short job has nothing to spare for a trial; the first of the list is compared all the same."""
    history = History()
    launch = begins(history, T4)
    after = lost(trains(history, 1.0), launch)
    short = facts_of(after, wanted(T4, V100), 0.3)
    assert worth_a_trial(short, all_spot_work(short), spot_work(short)) is None
    long = facts_of(after, wanted(T4, A10G), 20)
    trial = worth_a_trial(long, all_spot_work(long), spot_work(long))
    assert trial is not None
    assert trial.loses_usd <= EXPLORED * 0.16 * 20


def test_a_kind_that_was_tried_is_not_tried_again_and_its_loss_is_counted() -> None:
    history = History()
    launch = begins(history, T4)
    lost(trains(history, 1.0), launch)
    launch = begins(history, A10G)
    facts = facts_of(lost(trains(history, 2.0), launch), wanted(T4, A10G), 20)
    assert worth_a_trial(facts, all_spot_work(facts), spot_work(facts)) is None
    assert spot_now(facts)[0].accelerators == T4
    assert lost_usd(facts, Accelerators("T4"), 0.16) > 0


# -- moves -----------------------------------------------------------------------------------------------------------


def test_an_instance_is_left_for_a_kind_that_is_known_to_cost_less() -> None:
    history = History()
    launch = begins(history, T4)
    lost(trains(history, 1.0), launch)
    begins(history, A10G)
    facts = facts_of(trains(history, 2.0), wanted(T4, A10G), 20)
    move = move_to_another_kind(facts)
    assert move is not None
    assert move.offering.accelerators == T4
    assert "a sample costs 3" in move.because


@pytest.mark.parametrize(("hours", "tried"), [(200, True), (5, False)])
def test_a_trial_does_not_wait_for_an_interruption_where_the_wait_would_spare_only_a_cheap_start(
    hours: float, tried: bool
) -> None:
    """Until the next interruption the trial saves less than it costs. But it has to be made sooner or later."""
    history = History()
    begins(history, T4)
    facts = facts_of(trains(history, 1.0), wanted(T4, V100), hours)
    assert (move_to_another_kind(facts) is not None) is tried
    work = spot_work(facts)
    saved_until_then = worth_a_trial(facts, work, work, Until(1.0, could_wait=False))
    assert saved_until_then is None


def test_it_stays_where_the_rest_of_the_work_does_not_pay_for_a_start() -> None:
    history = History()
    launch = begins(history, T4)
    lost(trains(history, 1.0), launch)
    begins(history, A10G)
    facts = facts_of(trains(history, 2.0), wanted(T4, A10G), 0.15)
    assert move_to_another_kind(facts) is None


def test_without_a_choice_nothing_is_left() -> None:
    history = History()
    begins(history, T4)
    assert move_to_another_kind(facts_of(trains(history, 1.0), spec(resources={"accelerators": T4}), 20)) is None


def test_a_wait_for_the_better_kind_comes_before_a_dearer_one() -> None:
    """A wait costs nothing; after ten minutes a dearer kind or on-demand is asked for, whichever costs less."""
    history = History()
    launch = begins(history, T4)
    lost(trains(history, 1.0), launch)
    launch = begins(history, A10G)
    trains(history, 3.0)
    history.gone(launch, EndedBy.CLOUD, ended_at=history.now)
    history.close(history.launch(SPOT, "0.16", accelerators=T4, instance_type=TYPES[T4]))
    job = wanted(T4, A10G)
    waits = choose_capacity(facts_of(history.after(30), job, 20))
    assert not isinstance(waits, Chosen)
    assert "a better kind than A10G:1" in waits.reason
    history.after(timedelta(minutes=11).total_seconds())
    history.close(history.launch(SPOT, "0.16", accelerators=T4, instance_type=TYPES[T4]))
    found = choose_capacity(facts_of(history.after(30), job, 20))
    assert isinstance(found, Chosen)
    assert found.offering.accelerators == T4
    assert found.offering.capacity_type is ON_DEMAND


def test_spot_of_a_dearer_kind_comes_before_on_demand_that_costs_more() -> None:
    """The best kind has refused for long enough to go on demand, and spot of the other one costs less than that."""
    history = History()
    for kind, step_s in ((T4, 1.0), (A10G, 1.0)):
        launch = begins(history, kind)
        lost(trains(history, step_s), launch)
    history.after(timedelta(minutes=11).total_seconds())
    history.close(history.launch(SPOT, "0.16", accelerators=T4, instance_type=TYPES[T4]))
    history.after(180)
    found = choose_capacity(facts_of(history, wanted(T4, A10G), 20))
    assert isinstance(found, Chosen)
    assert (found.offering.accelerators, found.offering.capacity_type) == (A10G, SPOT)
    dear = (*MARKET[:2], offered(A10G, price="0.60"), offered(A10G, ON_DEMAND))
    found = choose_capacity(facts_of(history, wanted(T4, A10G), 20, dear))
    assert isinstance(found, Chosen)
    assert (found.offering.accelerators, found.offering.capacity_type) == (T4, ON_DEMAND)


def test_run_on_demand_tries_spot_of_another_kind_before_the_refusing_best_kind() -> None:
    history = History()
    for kind, step_s in ((T4, 1.0), (A10G, 1.2)):
        launch = begins(history, kind)
        lost(trains(history, step_s), launch)
    history.running(ON_DEMAND, "0.526", accelerators=T4, instance_type=TYPES[T4])
    history.after(700)
    history.close(history.launch(SPOT, "0.16", accelerators=T4, instance_type=TYPES[T4]))
    history.after(200)
    market = (offered(T4), offered(A10G), offered(T4, ON_DEMAND))
    actions = decided(history, wanted(T4, A10G), market=market, steps_total=72_000.0)
    intents = [event for event in events_of(actions) if isinstance(event, ev.LaunchIntended)]
    assert [each.offering.accelerators for each in intents] == [A10G]


# -- whole runs in markets whose speeds nobody tells ------------------------------------------------------------------


def paid(kinds: tuple[str, ...], hours: float, speeds: dict[str, float]) -> tuple[float, list[str]]:
    """Dollars, and the types that trained one after another, of a job that takes so many hours at speed 1."""
    world = SimulatedWorld(
        wanted(*kinds),
        Training(steps=round(hours * 3600), speeds={TYPES[kind]: times for kind, times in speeds.items()}),
        CalmMarket(MARKET),
        idle_s=300.0,
    )
    result = world.run(100 * hours * 3600)
    assert result.finished_s is not None
    offerings = (world.state.launch_of(each).intent.offering for each in world.state.attempts.values())
    return float(result.instances_usd), [each.accelerators for each in offerings]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("speeds", "path"),
    [({T4: 1.0, A10G: 4.0}, [T4, A10G]), ({T4: 1.0, A10G: 0.5}, [T4, A10G, T4])],
    ids=["believed dearer, and cheaper", "believed dearer, and dearer still"],
)
def test_a_run_ends_on_the_kind_that_is_truly_cheaper_and_pays_little_more_than_that_alone(
    speeds: dict[str, float], path: list[str]
) -> None:
    chosen, trained_on = paid((T4, A10G), 20.0, speeds)
    best = min(paid((kind,), 20.0, speeds)[0] for kind in (T4, A10G))
    assert [kind for kind, _ in groupby(trained_on)] == path
    assert chosen <= 1.03 * best


# -- what is told ----------------------------------------------------------------------------------------------------


def test_a_report_tells_of_a_change_of_types() -> None:
    history = History(spec={"resources": {"accelerators": {"any_of": [T4, A10G]}}})
    launch = begins(history, T4)
    lost(trains(history, 1.0), launch)
    assert "bits" not in assumptions(history.state, None)
    begins(history, A10G)
    said = "trained on T4:1 and A10G:1: the same samples in the same order, but results may differ in their last bits"
    assert said in assumptions(history.state, None)
