"""What the policy decides, told as what happens to a run. No cloud, no clock: a state, a world and a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.market.world import World
from spotrun.policy import Execute, Terminate, Wait, finished
from spotrun.policy.lives import HANDOVER_BEFORE_END, TIME_TO_LIVE, lives_until
from spotrun.policy.standbys import FIRST_PAUSE
from spotrun.run import events as ev
from spotrun.run.billing import LOCAL_RULE
from spotrun.run.events import Cause
from tests.support.decisions import MARKET, ask, asked, decided, events_of, instance, spec, trains
from tests.support.histories import AWS_RULE, ON_DEMAND, SPOT, History

# -- where -----------------------------------------------------------


def test_the_first_launch_asks_for_the_cheapest_spot() -> None:
    assert asked(decided(History())) == ("local-a", SPOT)


def test_refusing_pool_rests_while_the_next_cheapest_is_requested() -> None:
    history = History()
    assert [ask(history) for _ in range(4)] == [("local-a", SPOT), ("local-b", SPOT), ("local-c", SPOT), None]
    history.after(121)
    assert ask(history) == ("local-a", SPOT)


def test_auto_goes_on_demand_when_spot_was_refused_for_long_enough_and_not_before() -> None:
    history = History()
    for _ in range(3):
        ask(history)
    history.after(100)
    assert isinstance(decided(history)[0], Wait)
    history.after(510)
    assert ask(history) == ("local-a", ON_DEMAND)


def test_an_on_demand_pool_that_refused_rests_too() -> None:
    history, wanted = History(), spec(resources={"spot_policy": "on-demand"})
    asked_for = [ask(history, wanted) for _ in range(3)]
    assert asked_for == [("local-a", ON_DEMAND), ("local-b", ON_DEMAND), None]


def test_spot_only_never_goes_on_demand() -> None:
    history, wanted = History(), spec(resources={"spot_policy": "spot"})
    for _ in range(20):
        choice = ask(history, wanted)
        assert choice is None or choice[1] is SPOT
        history.after(600)


def test_nothing_above_max_price_is_requested() -> None:
    history, wanted = History(), spec(resources={"max_price": "0.35"})
    history.after(3600)
    assert [ask(history, wanted) for _ in range(2)] == [("local-a", SPOT), None]


def test_pool_that_was_just_lost_is_requested_last() -> None:
    history = History()
    launch = history.launch()
    history.record(launch)
    history.start(launch)
    history.gone(launch, EndedBy.CLOUD)
    lost = replace(MARKET[0], instance_type="sim-gpu")
    assert asked(decided(history, market=(lost, *MARKET[1:]))) == ("local-b", SPOT)


@pytest.mark.parametrize("trained", [False, True])
def test_nothing_is_requested_while_the_store_is_full(trained: bool) -> None:
    history = History()
    if trained:
        launch = trains(history)
        history.ended(Cause.STORE_FULL)
        history.gone(launch.launch, EndedBy.ITSELF)
    (waits,) = decided(history, no_room="the disk is full")
    assert isinstance(waits, Wait)
    assert waits.reason.endswith("the disk is full")
    assert asked(decided(history)) == ("local-a", SPOT)


# -- notices and the way back -----------------------------------------------------------


def test_a_notice_launches_one_standby_and_only_one() -> None:
    history = History()
    here = trains(history)
    assert decided(history, instances=[here]) == []
    history.notice()
    first = decided(history, instances=[here])
    assert asked(first) is not None
    number = history.write(events_of(first)[0])
    assert history.state.launches[number].intent.standby_for == history.state.current_attempt
    assert decided(history, instances=[here]) == [Execute(launch=number)]
    assert decided(history, instances=[here, instance(history, number, billed_from=None)]) == []


def test_spot_is_returned_to_by_a_standby_first_and_a_drain_once_it_is_ready() -> None:
    history = History()
    here = trains(history, ON_DEMAND)
    history.after(300)
    assert decided(history, instances=[here]) == []
    history.after(400)
    actions = decided(history, instances=[here])
    assert asked(actions) == ("local-a", SPOT)
    number = history.write(events_of(actions)[0])
    there = instance(history, number, billed_from=None)
    assert decided(history, instances=[here, there]) == []
    (drain,) = events_of(decided(history, instances=[here, there], ready=frozenset({number})))
    assert isinstance(drain, ev.DrainRequested)


def test_a_refused_way_back_is_tried_again_only_after_another_cool_down() -> None:
    history = History()
    here = trains(history, ON_DEMAND)
    history.after(700)
    assert ask(history, instances=[here]) == ("local-a", SPOT)
    assert decided(history, instances=[here]) == []
    history.after(599)
    assert decided(history, instances=[here]) == []
    history.after(2)
    assert ask(history, instances=[here]) == ("local-a", SPOT)


def test_an_instance_at_the_end_of_its_life_commits_and_goes_even_without_a_standby() -> None:
    history = History()
    here = trains(history)
    history.after(86_400 - 120)
    (event,) = events_of(decided(history, instances=[here]))
    assert isinstance(event, ev.DrainRequested)


@pytest.mark.parametrize("life", [TIME_TO_LIVE, timedelta(hours=1)])
def test_an_instance_is_replaced_a_day_before_the_end_of_a_life_that_has_so_much(life: timedelta) -> None:
    history = History()
    (intent,) = events_of(decided(history))
    assert isinstance(intent, ev.LaunchIntended)
    launch = history.write(replace(intent, time_to_live_s=life.total_seconds()))
    history.record(launch)
    here = instance(history, launch)
    history.start(launch)
    history.after(85_500 if life == TIME_TO_LIVE else 2_700)
    assert decided(history, instances=[here]) == []
    (standby,) = events_of(decided(history.after(1), instances=[here]))
    assert isinstance(standby, ev.LaunchIntended)
    assert standby.standby_for == history.attempt


# -- money and time -----------------------------------------------------------


@pytest.mark.parametrize(("usd", "minutes"), [("0.3", 18), ("3", 90), ("20", 600)])
def test_an_instance_gets_half_of_the_budget_and_all_of_it_where_half_is_too_short_a_life(
    usd: str, minutes: int
) -> None:
    (intent,) = events_of(decided(History(budget_usd=Decimal(usd)), spec(budget={"max_usd": usd})))
    assert isinstance(intent, ev.LaunchIntended)
    share = timedelta(minutes=minutes)  # less what storage and requests may take
    assert share * 0.97 < timedelta(seconds=intent.time_to_live_s) < share


def test_disk_and_address_are_reserved_too_and_make_a_life_shorter() -> None:
    lives = []
    for rule in (LOCAL_RULE, AWS_RULE):
        history = History(budget_usd=Decimal("3"), billing=rule)
        (intent,) = events_of(decided(history))
        history.write(intent)  # which would be void above the budget
        assert history.state.reserved_usd() <= 3
        assert isinstance(intent, ev.LaunchIntended)
        lives.append(intent.time_to_live_s)
    assert lives[1] < lives[0]


def test_a_budget_that_pays_for_no_instance_stops_the_run_once_nothing_is_reserved() -> None:
    history = History(budget_usd=Decimal("0.1"))
    (event,) = events_of(decided(history))
    assert isinstance(event, ev.RunStopped)


def test_a_reservation_that_is_still_held_is_waited_for() -> None:
    history = History(budget_usd=Decimal("0.3"))
    (intent,) = events_of(decided(history))
    launch = history.write(intent)
    history.record(launch)
    history.start(launch)
    history.drained(None)
    here = instance(history, launch)
    assert isinstance(decided(history, instances=[here])[0], Wait)
    history.gone(launch, EndedBy.ITSELF)
    assert asked(decided(history)) is not None


def test_unanswered_launch_stays_reserved_until_the_cloud_has_long_shown_nothing() -> None:
    history = History(budget_usd=Decimal("0.3"))
    (intent,) = events_of(decided(history))
    launch = history.write(intent)
    history.close(launch, answered=False)
    assert isinstance(decided(history)[0], Wait), "another life may not fit beside it"
    history.after(20 * 60 + 1)
    (gone, *_) = events_of(decided(history))
    assert isinstance(gone, ev.InstanceGone)
    history.write(gone)
    assert asked(decided(history)) is not None


def test_max_duration_drains_and_then_stops_and_pauses_do_not_count() -> None:
    history, wanted = History(), spec(max_duration="8h")
    here = trains(history)
    history.after(8 * 3600 + 1)
    (drain,) = events_of(decided(history, wanted, [here]))
    assert isinstance(drain, ev.DrainRequested)
    history.write(drain)
    history.drained(None)
    assert isinstance(events_of(decided(history, wanted, [here]))[0], ev.RunStopped)


# -- the end -----------------------------------------------------------


def test_a_stop_ends_the_run_as_soon_as_no_attempt_is_current() -> None:
    history = History()
    here = trains(history)
    history.write(ev.StopRequested(by="me"))
    assert decided(history, instances=[here]) == []
    history.drained(None)
    assert isinstance(events_of(decided(history, instances=[here]))[0], ev.RunStopped)


def test_an_attempt_that_does_not_stop_is_condemned_after_a_while() -> None:
    history = History()
    here = trains(history)
    history.write(ev.StopRequested(by="me"))
    history.after(601)
    assert isinstance(events_of(decided(history, instances=[here]))[0], ev.InstanceCondemned)


def test_a_user_error_fails_the_run_and_resume_tries_again() -> None:
    history = History()
    trains(history)
    history.ended(Cause.USER_ERROR)
    (failure,) = events_of(decided(history))
    assert isinstance(failure, ev.RunFailed)
    history.write(failure)
    assert decided(history) == []
    history.after(60).write(ev.ResumeRequested(by="me"))
    assert asked(decided(history)) is not None


def test_an_attempt_that_missed_its_drain_is_followed_by_another() -> None:
    history = History()
    trains(history)
    history.ended(Cause.INTERRUPTED)
    assert asked(decided(history)) is not None


def test_three_instances_that_never_took_over_fail_the_run() -> None:
    history = History()
    for _ in range(3):
        launch = history.after(60).launch()
        history.record(launch)
        history.after(60).gone(launch, EndedBy.ITSELF)
    assert isinstance(events_of(decided(history))[0], ev.RunFailed)


def test_standbys_that_were_not_needed_do_not_count_as_failures() -> None:
    history = History()
    trains(history, ON_DEMAND)
    for _ in range(3):
        launch = history.after(60).launch()
        history.record(launch)
        history.after(60).gone(launch, EndedBy.ITSELF)
    history.ended(Cause.INTERRUPTED)
    assert asked(decided(history)) is not None


def _boots_in_vain(history: History, launch: int) -> None:
    history.after(10).record(launch)
    history.after(150).gone(launch, EndedBy.ITSELF)


def _never_speaks(history: History, launch: int) -> None:
    history.after(10).record(launch)
    history.after(1800).close(launch, Cause.EXTERNAL)
    history.gone(launch, EndedBy.USER)


def _is_rejected(history: History, launch: int) -> None:
    history.write(ev.LaunchClosed(launch=launch, cause=Cause.EXTERNAL, detail="no such image", refused=True))


STANDBYS_FAIL = {
    "its boot fails": _boots_in_vain,
    "its agent never speaks": _never_speaks,
    "the request is rejected": _is_rejected,
    "the account may not": lambda history, launch: history.close(launch, Cause.ACCESS),
}


def long_lived(history: History) -> Instance:
    """What trains is in the last day of a life of two, so that a standby is wanted for a day."""
    (intent,) = events_of(decided(history))
    launch = history.write(replace(intent, time_to_live_s=TIME_TO_LIVE.total_seconds()))
    history.record(launch)
    history.start(launch)
    history.resume()
    history.training()
    history.after(24 * 3600 - 899)
    return instance(history, launch)


@pytest.mark.parametrize("fails", STANDBYS_FAIL.values(), ids=STANDBYS_FAIL)
def test_after_three_standbys_that_fail_each_pause_is_twice_as_long_and_training_goes_on(
    fails: Callable[[History, int], None],
) -> None:
    history = History()
    here, asked_at, failed_at = long_lived(history), [], []
    last_call = lives_until(history.state, history.state.current) - HANDOVER_BEFORE_END
    while history.now < last_call - timedelta(minutes=5):
        actions = decided(history, instances=[here])
        assert all(isinstance(event, ev.LaunchIntended) for event in events_of(actions))
        if not events_of(actions):
            (wait,) = actions
            assert isinstance(wait, Wait)
            rests = any(why in wait.reason for why in ("it is denied", "the request is rejected (no such image)"))
            assert rests or f"{len(asked_at)} standbys in a row failed" in wait.reason
            history.after(300)
            continue
        asked_at.append(history.now)
        fails(history, history.write(events_of(actions)[0]))
        failed_at.append(history.now)
    pauses = [asked - failed for asked, failed in zip(asked_at[1:], failed_at, strict=False)]
    assert pauses[:2] == [timedelta(0)] * 2
    assert all(timedelta() <= pause - 2**n * FIRST_PAUSE <= timedelta(minutes=5) for n, pause in enumerate(pauses[2:]))
    assert 7 <= len(asked_at) <= 10
    history.now = max(history.now, last_call)
    assert (asked(decided(history, instances=[here])) is not None) is (failed_at[-1] < last_call), "the last call"
    history.gone(here.launch)
    assert not isinstance(decided(history)[0], Wait), "nothing trains, so nothing is put off"


def test_hundreds_of_failures_that_an_earlier_version_left_make_no_pause_without_end() -> None:
    history = History()
    here = long_lived(history)
    for _ in range(200):
        _is_rejected(history, history.launch())
    assert events_of(decided(history, instances=[here])) == []
    history.now = lives_until(history.state, history.state.current) - HANDOVER_BEFORE_END
    assert asked(decided(history, instances=[here])) is not None


def test_a_notice_and_the_other_capacity_type_do_not_wait_for_what_has_failed() -> None:
    history = History()
    here = long_lived(history)
    for _ in range(3):
        (intent,) = events_of(decided(history, instances=[here]))
        _boots_in_vain(history, history.write(intent))
    assert events_of(decided(history, instances=[here])) == []
    on_demand = tuple(found for found in MARKET if found.capacity_type is ON_DEMAND)
    assert asked(decided(history, spec(resources={"spot_policy": "on-demand"}), [here], on_demand)) is not None
    history.notice()
    assert asked(decided(history, instances=[here])) is not None


def test_refusals_and_losses_of_the_market_delay_no_standby() -> None:
    history = History()
    here = long_lived(history)
    for cause in (Cause.CAPACITY, Cause.QUOTA, Cause.CAPACITY, None, None):
        (intent,) = events_of(decided(history, instances=[here]))
        launch = history.write(intent)
        if cause is None:
            history.record(launch)
            history.gone(launch, EndedBy.CLOUD)
        else:
            history.close(launch, cause)
        history.after(130)
    assert asked(decided(history, instances=[here])) is not None


def test_attempts_that_end_for_no_market_reason_without_a_checkpoint_do_not_go_on_for_ever() -> None:
    history = History()
    for _ in range(5):
        launch = history.after(60).launch()
        history.record(launch)
        history.start(launch)
        history.after(60).gone(launch, EndedBy.FAULT)
    assert isinstance(events_of(decided(history))[0], ev.RunFailed)


def test_a_completed_run_is_never_started_again() -> None:
    history = History()
    here = trains(history)
    history.completed(None)
    assert asked(decided(history, instances=[here])) is None
    assert not finished(history.state, World(offerings=MARKET, instances=(here,)))
    assert not finished(history.state, World(offerings=MARKET, instances=())), "its end is not in the ledger"
    history.gone(here.launch, EndedBy.ITSELF)
    assert finished(history.state, World(offerings=MARKET, instances=()))


# -- what the cloud shows -----------------------------------------------------------


def test_orphans_and_instances_of_closed_launches_are_terminated() -> None:
    history = History()
    closed = history.launch()
    history.close(closed)
    orphan = instance(history, 99)
    ended = {
        action.instance_id
        for action in decided(history, instances=[orphan, instance(history, closed, billed_from=None)])
        if isinstance(action, Terminate)
    }
    assert ended == {"i-99", f"i-{closed}"}


def test_an_end_is_recorded_once() -> None:
    history = History()
    launch = history.launch()
    history.record(launch)
    dead = instance(history, launch, InstanceState.TERMINATED, ended_at=history.now, ended_by=EndedBy.CLOUD)
    (gone,) = events_of(decided(history, instances=[dead]))
    assert isinstance(gone, ev.InstanceGone)
    history.write(gone)
    assert not any(isinstance(event, ev.InstanceGone) for event in events_of(decided(history, instances=[dead])))


def test_an_intent_is_executed_until_it_is_too_old_and_then_closed() -> None:
    history = History()
    launch = history.launch()
    assert decided(history) == [Execute(launch=launch)]
    history.after(601)
    (event,) = events_of(decided(history))
    assert isinstance(event, ev.LaunchClosed)


def test_one_empty_list_of_the_cloud_is_no_evidence_against_a_living_attempt() -> None:
    history = History()
    here = trains(history)
    history.after(3600)
    assert events_of(decided(history, silent={here.launch: timedelta(seconds=3)})) == []


def test_a_heartbeat_that_has_not_changed_for_long_condemns_its_instance() -> None:
    history = History()
    here = trains(history)
    assert events_of(decided(history, instances=[here], silent={here.launch: timedelta(minutes=3)})) == []
    (event,) = events_of(decided(history, instances=[here], silent={here.launch: timedelta(minutes=4)}))
    assert isinstance(event, ev.InstanceCondemned)


def test_a_standby_whose_agent_never_speaks_is_given_up() -> None:
    history = History()
    launch = history.launch()
    history.record(launch)
    booting = instance(history, launch)
    history.after(13 * 60)
    assert events_of(decided(history, instances=[booting])) == []
    history.after(61)
    assert events_of(decided(history, instances=[booting], open_for=timedelta(minutes=3))) == [], "could it speak?"
    assert events_of(decided(history, instances=[booting], silent={launch: timedelta(seconds=2)})) == []
    (event,) = events_of(decided(history, instances=[booting]))
    assert isinstance(event, ev.LaunchClosed)


# -- what must never be rented, and what must never be left -----------------------------------------------------------


def test_an_intent_that_the_spec_does_not_allow_is_never_executed() -> None:
    """Protocol 10: code on an instance may write entries, but cannot make a runner rent what entry 0 does not want."""
    history = History()
    honest = next(event for event in events_of(decided(history)) if isinstance(event, ev.LaunchIntended))
    wanted = spec(resources={"spot_policy": "spot"})
    forged = {
        "another type": replace(honest, offering=replace(honest.offering, instance_type="gpu-farm")),
        "another zone": replace(honest, offering=replace(honest.offering, zone="moon-1")),
        "on demand under spot only": replace(honest, offering=MARKET[3]),
        "another image": replace(honest, offering=replace(honest.offering, image="ami-0")),
        "another subnet": replace(honest, offering=replace(honest.offering, subnet="subnet-0")),
        "another template": replace(honest, offering=replace(honest.offering, launch_template="lt-0")),
        "a longer life": replace(honest, time_to_live_s=31 * 86_400.0),
        "dearer than it reserves": replace(honest, price_ceiling_usd_per_hour=Decimal("0.01")),
    }
    for what, event in forged.items():
        history = History()
        launch = history.write(event)
        actions = decided(history, wanted)
        assert not any(isinstance(action, Execute) for action in actions), what
        assert [(closed.launch, ev.kind(closed)) for closed in events_of(actions)] == [(launch, "LaunchClosed")], what
    history = History()
    launch = history.write(honest)
    assert decided(history, wanted) == [Execute(launch=launch)]


def test_an_instance_that_comes_back_after_its_end_was_recorded_is_terminated() -> None:
    """The cloud's list left it out for long enough to be given up; then it is there again, and nobody's."""
    history = History()
    launch = history.launch()
    history.record(launch)
    history.after(1200).gone(launch, EndedBy.FAULT)
    actions = decided(history, instances=[instance(history, launch)])
    assert Terminate(instance_id=f"i-{launch}", reason="its end is recorded") in actions


def test_a_condemned_instance_is_terminated() -> None:
    history = History()
    here = trains(history)
    history.write(ev.InstanceCondemned(launch=here.launch, cause=Cause.HANG))
    assert Terminate(instance_id=here.instance_id, reason="condemned") in decided(history, instances=[here])


def test_an_instance_whose_attempt_is_over_has_some_minutes_to_power_itself_off() -> None:
    history = History()
    here = trains(history)
    history.drained(None)
    history.after(170)
    assert not [action for action in decided(history, instances=[here]) if isinstance(action, Terminate)]
    history.after(20)
    assert Terminate(instance_id=here.instance_id, reason="its attempt is over") in decided(history, instances=[here])


def test_an_instance_under_notice_is_left_for_the_cloud_to_take_which_may_make_it_free() -> None:
    history = History()
    here = trains(history)
    history.write(
        ev.NoticeSeen(
            attempt=history.state.current_attempt, kind="termination", deadline_at=history.now + timedelta(seconds=120)
        )
    )
    history.drained(None)
    history.after(290)
    assert not [action for action in decided(history, instances=[here]) if isinstance(action, Terminate)]
    history.after(20)
    assert Terminate(instance_id=here.instance_id, reason="its attempt is over") in decided(history, instances=[here])


def test_a_pool_beyond_the_quota_is_not_asked_again() -> None:
    history = History()
    history.write(events_of(decided(history))[0])
    history.close(1, Cause.QUOTA)
    history.after(300)
    assert asked(decided(history)) == ("local-b", SPOT)


def test_on_demand_after_nothing_does_not_wait() -> None:
    history, wanted = History(), spec(policy={"on_demand_after": "0s"})
    only_on_demand = tuple(found for found in MARKET if found.capacity_type is ON_DEMAND)
    assert asked(decided(history, wanted, market=only_on_demand)) == ("local-a", ON_DEMAND)


def test_two_notices_in_a_row_are_one_standby_each() -> None:
    history = History()
    for _ in range(2):
        trains(history)
        history.notice()
        standby = history.write(events_of(decided(history, instances=[]))[-1])
        assert history.state.launches[standby].intent.standby_for == history.state.current_attempt
        history.record(standby)
        history.drained(None)
        assert events_of(decided(history, instances=[instance(history, standby)])) == [], "the standby takes over"
        history.close(standby, Cause.EXTERNAL)


def test_an_instance_at_the_end_of_its_life_goes_although_its_standby_is_not_ready() -> None:
    history = History()
    here = trains(history)
    history.after(24 * 3600 - 600)
    standby = history.write(events_of(decided(history, instances=[here]))[-1])
    history.record(standby)
    beside = instance(history, standby)
    assert events_of(decided(history, instances=[here, beside])) == []
    history.after(480)
    (drain,) = events_of(decided(history, instances=[here, beside]))
    assert isinstance(drain, ev.DrainRequested)


def test_a_pending_launch_is_closed_when_the_run_is_stopped_and_its_instance_is_terminated() -> None:
    history = History()
    launch = history.launch()
    history.write(ev.StopRequested(by="me"))
    there = instance(history, launch, billed_from=None, prices=())
    (closed,) = events_of(decided(history, instances=[there]))
    assert isinstance(closed, ev.LaunchClosed)
    history.write(closed)
    actions = decided(history, instances=[there])
    assert actions[0] == Terminate(instance_id=there.instance_id, reason="its launch is closed")
    assert isinstance(events_of(actions)[0], ev.RunStopped)


def test_a_pause_that_is_to_last_for_years_puts_off_no_max_duration() -> None:
    """In a run without a key anybody who may write there could have resumed it, at a moment of his choice."""
    history, wanted = History(ledger_version=ev.OLD_LEDGER_VERSION), spec(max_duration="2h")
    history.write(ev.StopRequested(by="anybody"))
    history.write(ev.RunStopped(reason="stop requested"))
    history.skew = timedelta(days=36_500)
    history.write(ev.ResumeRequested(by="anybody"))
    history.skew = timedelta()
    assert ask(history, wanted) is not None
    (stopped,) = events_of(decided(history.after(3 * 3600), wanted))
    assert isinstance(stopped, ev.RunStopped)


def test_max_duration_counts_from_the_creation_and_pauses_do_not_count() -> None:
    history, wanted = History(), spec(max_duration="2h")
    history.after(3600).write(ev.RunStopped(reason="asked"))
    history.after(36_000).write(ev.ResumeRequested(by="me"))
    (intent,) = events_of(decided(history, wanted))
    assert isinstance(intent, ev.LaunchIntended)
    assert timedelta(seconds=intent.time_to_live_s) == timedelta(hours=1, minutes=15), "no life beyond it but a grace"
    history.after(3601)
    assert isinstance(events_of(decided(history, wanted))[0], ev.RunStopped)


def test_a_standby_that_speaks_is_not_given_up_for_one_empty_list_and_a_closed_one_is() -> None:
    history = History()
    launch = history.launch()
    history.record(launch)
    history.after(800)
    for silent in ({}, {launch: timedelta(seconds=3)}):
        assert events_of(decided(history, silent=silent)) == []
    history.close(launch, Cause.EXTERNAL)
    gone = events_of(decided(history))[0]
    assert isinstance(gone, ev.InstanceGone), "else its reservation would be held for ever"
