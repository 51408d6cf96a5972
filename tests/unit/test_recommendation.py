"""A recommendation to rebalance is acted on where that pays: once for an instance, and in order."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.market.hazard import FOLLOWED_PRIOR, FOLLOWS_WITHIN, probability_to_follow
from spotrun.policy import Action
from spotrun.policy.recommendation import REASON
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.spec.model import RunSpec
from tests.support import decisions, worlds
from tests.support.decisions import asked, events_of, instance, spec
from tests.support.histories import ON_DEMAND, SPOT, History, offering
from tests.support.world import SimulatedWorld, TickMarket, Timings, Training
from tests.support.world.market import CalmMarket

MARKET = (
    offering(SPOT, "0.30", "local-a"),
    offering(SPOT, "0.302", "local-b"),
    offering(SPOT, "0.302", "local-c"),
    offering(ON_DEMAND, "1.00", "local-a"),
)
QUARTER_S = FOLLOWS_WITHIN.total_seconds()


def decided(history: History, wanted: RunSpec | None = None, *here: Instance, **world: object) -> list[Action]:
    return decisions.decided(history, wanted, here, **{"market": MARKET, **world})  # type: ignore[arg-type]


def told(history: History | None = None) -> tuple[History, Instance]:
    """What trains for an hour is told that it might be taken."""
    history = history or History()
    launch = history.running(price="0.30")
    here = instance(history, launch)
    history.after(3600).commit()
    history.notice("rebalance")
    return history, here


def moves(history: History, here: Instance) -> int:
    """Carry out the decision to start a standby; its launch."""
    (intent,) = events_of(decided(history, None, here))
    assert isinstance(intent, ev.LaunchIntended)
    assert intent.reason.startswith(REASON)
    launch = history.write(intent)
    history.record(launch)
    return launch


# -- one instance ------------------------------------------------------------------------------------------------------


def test_a_standby_is_started_elsewhere_while_training_goes_on() -> None:
    history, here = told()
    assert asked(decided(history, None, here)) == ("local-b", SPOT)
    launch = moves(history, here)
    assert not history.state.current.leaving
    both = [here, instance(history, launch)]
    assert decided(history, None, *both) == []
    (drain,) = events_of(decided(history, None, *both, ready=frozenset({launch})))
    assert isinstance(drain, ev.DrainRequested)
    assert drain.reason.startswith(REASON)


def test_an_instance_that_is_never_taken_is_drained_then_ended() -> None:
    """The handover is the ordinary one: drain, final commit, the standby's start, and the old instance goes."""
    history, here = told()
    old = history.attempt
    launch = moves(history, here)
    there = instance(history, launch)
    (drain,) = events_of(decided(history, None, here, there, ready=frozenset({launch})))
    history.write(drain)
    history.drained(history.commit(final=True))
    assert history.state.attempts[old].end.cause is Cause.REPLACED
    history.start(launch)
    history.resume()
    history.training()
    assert decided(history, None, here, there) == []
    history.after(200)
    assert [action.instance_id for action in decided(history, None, here, there)] == [here.instance_id]  # type: ignore[union-attr]


def test_one_instance_is_left_once_whatever_became_of_its_standby() -> None:
    history, here = told()
    history.gone(moves(history, here), EndedBy.CLOUD)
    for _ in range(20):
        assert asked(decided(history, None, here)) is None
        history.after(60)


def test_refusing_pool_is_requested_once_per_recommendation() -> None:
    history, here = told()
    places = []
    while intents := events_of(decided(history, None, here)):
        (intent,) = intents
        assert isinstance(intent, ev.LaunchIntended)
        places.append(intent.offering.zone)
        history.close(history.write(intent))
    assert places == ["local-b", "local-c"][: len(places)]
    assert places
    history.after(300)
    assert decided(history, None, here) == []


def test_a_notice_while_the_standby_boots_starts_no_second_one_and_a_later_one_does() -> None:
    history, here = told()
    launch = moves(history, here)
    history.notice()
    assert asked(decided(history, None, here, instance(history, launch))) is None
    history.gone(launch, EndedBy.CLOUD)
    assert asked(decided(history, None, here)) is not None


def test_a_loss_while_the_standby_boots_leaves_the_run_to_it() -> None:
    history, here = told()
    launch = moves(history, here)
    history.gone(here.launch, EndedBy.CLOUD)
    assert asked(decided(history, None, instance(history, launch))) is None
    history.start(launch)
    assert history.state.current.launch == launch


def test_a_recommendation_that_comes_with_the_notice_changes_nothing() -> None:
    history, here = told()
    history.notice()
    (intent,) = events_of(decided(history, None, here))
    assert isinstance(intent, ev.LaunchIntended)
    assert intent.reason.startswith("standby: the instance is leaving")


def test_an_old_recommendation_is_none_any_more() -> None:
    history, here = told()
    history.after(QUARTER_S)
    assert decided(history, None, here) == []


def test_on_demand_instance_does_not_move_at_a_recommendation() -> None:
    history = History()
    launch = history.running(ON_DEMAND, price="1.00")
    history.notice("rebalance")
    here = instance(history, launch, offering=MARKET[3])
    assert decided(history, spec(policy={"return_to_spot": False}), here) == []


def test_pool_in_danger_is_requested_last_until_the_danger_is_past() -> None:
    history, here = told()
    history.gone(here.launch, EndedBy.USER)
    assert asked(decided(history)) == ("local-b", SPOT)
    history.after(QUARTER_S)
    assert asked(decided(history)) == ("local-a", SPOT)


def test_where_spot_is_all_in_danger_nothing_is_started() -> None:
    history, here = told()
    assert asked(decided(history, None, here, market=(MARKET[0], MARKET[3]))) is None


def test_a_move_never_spends_what_a_tight_budget_has_left() -> None:
    """A life of 23 h is reserved for what trains; the second one must not be shorter."""
    (poor, here), (rich, there) = (told(History(budget_usd=Decimal(usd))) for usd in (100, 150))
    assert asked(decided(poor, None, here)) is None
    assert asked(decided(rich, None, there)) == ("local-b", SPOT)


# -- what it is worth --------------------------------------------------------------------------------------------------


def test_where_a_start_fits_into_the_notice_there_is_little_to_save() -> None:
    """Five starts of 100 s: a standby at the notice is there in time."""
    history = History()
    for _ in range(5):
        launch = history.running(price="0.30")
        history.after(3600)
        history.commit()
        history.notice()
        history.drained(history.commit(final=True))
        history.gone(launch, EndedBy.CLOUD)
    history.after(3600)
    history, here = told(history)
    assert asked(decided(history, None, here)) is None


def test_recommendations_that_nothing_followed_are_not_acted_on_any_more() -> None:
    history = History()
    for _ in range(3):
        history, here = told(history)
        history.after(2 * QUARTER_S)
        history.drained(history.commit(final=True))
        history.gone(here.launch, EndedBy.USER)
        history.after(3600)
    history, here = told(history)
    assert asked(decided(history, None, here)) is None


def test_the_probability_begins_at_the_prior_rises_with_losses_and_falls_with_quiet() -> None:
    history, here = told()
    assert probability_to_follow(history.state, history.now, FOLLOWS_WITHIN) == pytest.approx(FOLLOWED_PRIOR)
    quiet = probability_to_follow(history.state, history.now + FOLLOWS_WITHIN, FOLLOWS_WITHIN)
    later = probability_to_follow(history.state, history.now + 9 * FOLLOWS_WITHIN, FOLLOWS_WITHIN)
    assert later == quiet < FOLLOWED_PRIOR
    history.after(300).gone(here.launch, EndedBy.CLOUD)
    assert probability_to_follow(history.state, history.now, FOLLOWS_WITHIN) > FOLLOWED_PRIOR


def test_a_loss_long_after_its_recommendation_did_not_follow_on_it() -> None:
    (soon, first), (late, second) = told(), told()
    soon.after(QUARTER_S - 60).gone(first.launch, EndedBy.CLOUD)
    late.after(QUARTER_S + 60).gone(second.launch, EndedBy.CLOUD)
    after_soon, after_late = (probability_to_follow(each.state, each.now, FOLLOWS_WITHIN) for each in (soon, late))
    assert after_late < FOLLOWED_PRIOR < after_soon


# -- whole runs --------------------------------------------------------------------------------------------------------

SLOW = Timings(boot_s=(60.0, 60.0), setup_s=(120.0, 120.0), unannounced=0.0, recommended=1.0, lead_s=(400.0, 400.0))


NEAR = {"a": worlds.offer("a", SPOT, "1.00"), "b": worlds.offer("b", SPOT, "1.01")}
DEAR = [worlds.offer(zone, ON_DEMAND, "3.00") for zone in NEAR]


def zones(*pattern: str, hold_s: float = 2500.0) -> TickMarket:
    """A letter per zone that has spot, a word per `hold_s`."""
    ticks = [{zone: float(NEAR[zone].price_usd_per_hour) for zone in tick} for tick in pattern]
    return TickMarket(ticks, hold_s, NEAR, DEAR)


def calm() -> CalmMarket:
    return CalmMarket([*NEAR.values(), *DEAR])


def wanted(**policy: object) -> RunSpec:
    job = {"name": "demo", "workdir": "/tmp", "train": {"run": "true"}, "checkpoint": {"every": "5m"}}
    return RunSpec.model_validate({**job, "policy": policy})


def kinds(world: SimulatedWorld) -> list[str]:
    return [ev.kind(entry.event) for entry in world.entries]


@pytest.mark.exhaustive
def test_a_loss_that_was_recommended_early_costs_the_handover_alone() -> None:
    early, at_notice = (
        SimulatedWorld(wanted(), Training(steps=6000), zones("ab", *9 * "b"), timings=timings, idle_s=30.0)
        for timings in (SLOW, Timings(boot_s=(60.0, 60.0), setup_s=(120.0, 120.0), unannounced=0.0))
    )
    moved, waited = early.run(1e5), at_notice.run(1e5)
    assert moved.outcome == waited.outcome == "completed"
    assert moved.steps_redone == 0
    assert waited.finished_s is not None
    assert moved.finished_s is not None
    assert moved.finished_s < waited.finished_s - 60
    assert moved.cost_usd < waited.cost_usd + Decimal("0.05")


@pytest.mark.exhaustive
def test_a_recommendation_makes_an_extra_commit_and_training_goes_on() -> None:
    world = SimulatedWorld(wanted(), Training(steps=6000), zones("ab", *9 * "b"), timings=SLOW, idle_s=30.0)
    world.run(1e5)
    (heard,) = [entry for entry in world.entries if isinstance(entry.event, ev.NoticeSeen)]
    next_commit = next(
        entry
        for entry in world.entries
        if isinstance(entry.event, ev.CheckpointCommitted) and entry.number > heard.number
    )
    assert next_commit.at - heard.at < timedelta(seconds=45)
    assert not next_commit.event.final  # type: ignore[union-attr]


@pytest.mark.exhaustive
def test_the_old_instance_goes_when_the_standby_has_taken_over_though_it_is_never_taken() -> None:
    world = SimulatedWorld(wanted(), Training(steps=6000), calm(), timings=SLOW, idle_s=30.0)
    world.run(1500)
    (old,) = world.cloud.alive
    world.cloud.recommend(old.instance_id)
    world.run(1e5)
    assert world.result.outcome == "completed"
    order = [kind for kind in kinds(world) if kind in ("DrainRequested", "AttemptDrained", "AttemptStarted")]
    assert order == ["AttemptStarted", "DrainRequested", "AttemptDrained", "AttemptStarted"]
    gone = world.cloud.seen(old.instance_id)
    assert gone.state is InstanceState.TERMINATED
    assert gone.ended_by is EndedBy.ITSELF
    assert world.result.losses == 0
    assert world.result.downtime_s < 400


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_a_cloud_that_cries_wolf_is_soon_not_believed(seed: int) -> None:
    """Twelve hours with an alarm in nine minutes of each instance, and no loss: the changeovers end by themselves."""
    wolf = Timings(boot_s=(60.0, 60.0), setup_s=(120.0, 120.0), alarms_per_hour=6.0)
    world = SimulatedWorld(wanted(), Training(steps=12 * 3600), calm(), seed=seed, timings=wolf, idle_s=30.0)
    result = world.run(2e5)
    assert result.outcome == "completed"
    assert kinds(world).count("LaunchIntended") <= 12
    assert result.instances_usd < Decimal("12.5") * Decimal("1.10")


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
def test_recommendations_true_and_false_make_no_run_miss_its_deadline(seed: int) -> None:
    changing = zones("ab", "b", "ab", "a", hold_s=1500.0)
    timings = Timings(unannounced=0.3, recommended=0.7, alarms_per_hour=3.0)
    due = wanted(deadline="2h30m", expected_work="2h")
    result = SimulatedWorld(due, Training(steps=7200), changing, seed=seed, timings=timings, idle_s=30.0).run(1e5)
    assert not result.missed
