"""What a runner decides for a gang: who is asked for, who is kept, and who is let go."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from spotrun.folder.status_objects import agent_key, name_in
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.policy import Append, Terminate, Wait
from spotrun.policy.actions import Action, Execute
from spotrun.policy.changeovers import measured_starts
from spotrun.policy.gangs import JOIN_TOGETHER_WITHIN, available
from spotrun.policy.idle_polling import is_still
from spotrun.policy.lives import lives_until
from spotrun.report.next_decision import next_decision
from spotrun.report.unattended import left_alone
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from tests.support.decisions import MARKET, decided, events_of, instance, spec
from tests.support.gang_history import GangHistory
from tests.support.histories import ON_DEMAND, START

SIZE = 3


@pytest.fixture
def history() -> GangHistory:
    return GangHistory(SIZE)


def training(history: GangHistory) -> list[MemberName]:
    return history.training_gang(SIZE)


def shown(history: GangHistory, *names: MemberName, **facts: object) -> list[Instance]:
    """They as the cloud has them."""
    found = [
        instance(history, name.launch, instance_id=f"i-{name}", member=name.member, address="127.77.1.1")
        for name in names
    ]
    return [replace(each, **facts) for each in found]


def intended(actions: list[Action]) -> list[tuple[int, int | None, str]]:
    """How many are asked for, for which gang, and in which zone."""
    found = [event for event in events_of(actions) if isinstance(event, ev.LaunchIntended)]
    return [(each.instances, each.beside, each.offering.zone) for each in found]


def noticed(history: GangHistory, name: MemberName, seconds: float = 120) -> None:
    deadline_at = history.now + timedelta(seconds=seconds)
    event = ev.NoticeSeen(attempt=history.attempt, kind="termination", deadline_at=deadline_at, member=name)
    history.write(event)


def refused_by_its_pool(history: GangHistory, actions: list[Action]) -> None:
    (event,) = events_of(actions)
    history.close(history.write(event))


# -- who is asked for --------------------------------------------------------------------------------------------------


def test_gang_is_requested_as_a_whole(history: GangHistory) -> None:
    assert intended(decided(history)) == [(SIZE, None, "local-a")]


def test_replacement_of_a_noticed_member_is_requested_at_once_where_the_others_are(history: GangHistory) -> None:
    names = training(history)
    cheaper = replace(MARKET[1], price_usd_per_hour=Decimal("0.01"))
    assert intended(decided(history, instances=shown(history, *names))) == []
    noticed(history, names[1])
    market = (MARKET[0], cheaper, *MARKET[2:])
    actions = decided(history, instances=shown(history, *names), market=market)
    assert intended(actions) == [(1, history.attempt, "local-a")]


def test_two_members_lost_at_once_are_requested_together(history: GangHistory) -> None:
    names = training(history)
    attempt = history.attempt
    ended = {"state": InstanceState.TERMINATED, "ended_at": history.now, "ended_by": EndedBy.CLOUD}
    seen = [*shown(history, names[0]), *shown(history, *names[1:], **ended)]
    gone = events_of(decided(history, instances=seen))
    assert [(type(each), each.member) for each in gone] == [(ev.InstanceGone, 1), (ev.InstanceGone, 2)]
    for event in gone:
        history.write(event)
    assert intended(decided(history, instances=seen)) == [(2, attempt, "local-a")]


def test_no_member_is_requested_while_the_present_ones_are_enough(history: GangHistory) -> None:
    names = history.ask(SIZE)
    history.exist(*names)
    assert decided(history, instances=shown(history, *names)) == [], "they boot"
    history.ready(*names)
    assert decided(history, instances=shown(history, *names)) == [], "they begin by themselves"
    history.start_gang(names)
    history.end_without()
    assert decided(history, instances=shown(history, *names)) == [], "all survived"


def test_members_wait_for_the_missing_one_as_long_as_a_start_is_expected_to_take(history: GangHistory) -> None:
    names = training(history)
    history.lost(names[2])
    stay = names[:2]
    refused_by_its_pool(history, decided(history, instances=shown(history, *stay)))
    wait = Wait(reason="1 of 3 members missing, and no capacity in the pool of the other members now")
    assert decided(history, instances=shown(history, *stay)) == [wait]
    history.ready(*stay)
    assert decided(history.after(119), instances=shown(history, *stay)) == [wait]
    released = events_of(decided(history.after(2), instances=shown(history, *stay)))
    assert [(type(each), each.member) for each in released] == [(ev.MemberReleased, 0), (ev.MemberReleased, 1)]
    for event in released:
        history.write(event)
    actions = decided(history, instances=shown(history, *stay))
    ended = [action.instance_id for action in actions if isinstance(action, Terminate)]
    assert ended == ["i-1.0", "i-1.1"]
    assert intended(actions) == [(SIZE, None, "local-b")], "the pool of before is in trouble"


def test_each_loss_restarts_the_patience_of_the_others(history: GangHistory) -> None:
    names = training(history)
    gang = history.attempt
    history.lost(names[2])
    history.after(119).lost(names[1])
    history.after(119)
    assert intended(decided(history, instances=shown(history, names[0]))) == [(2, gang, "local-a")]


def test_a_run_in_a_hurry_waits_for_no_missing_member_of_a_gang_on_spot(history: GangHistory) -> None:
    for leaves_s, event_type in ((7200, ev.LaunchIntended), (1800, ev.MemberReleased)):
        history = GangHistory(SIZE, deadline_at=START + timedelta(seconds=leaves_s))
        names = training(history)
        history.lost(names[2])
        policy = {"deadline": f"{leaves_s}s", "expected_work": "25m"}
        found = events_of(decided(history, spec(policy=policy), shown(history, *names[:2])))
        assert {type(event) for event in found} == {event_type}


# -- who is let go -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_up_s", [30, 1200])
def test_unused_ready_member_is_released(history: GangHistory, set_up_s: int) -> None:
    names = history.ask(SIZE + 1)
    history.exist(*names)
    history.after(set_up_s).ready(*names, setup=ev.SetUp(seconds=set_up_s, how="run"))
    history.start_gang(names[:SIZE])
    history.meet()
    window_s = max(600, set_up_s)
    history.after(window_s)
    assert decided(history, instances=shown(history, *names)) == []
    (released,) = events_of(decided(history.after(1), instances=shown(history, *names)))
    assert (type(released), released.member) == (ev.MemberReleased, SIZE)
    history.write(released)
    (end,) = decided(history, instances=shown(history, *names))
    assert end == Terminate(instance_id=f"i-1.{SIZE}", reason="released")


def test_survivors_have_time_to_say_that_they_are_ready_again(history: GangHistory) -> None:
    names = training(history)
    history.after(7200).end_without()
    assert decided(history, instances=shown(history, *names)) == []


def test_members_that_are_ready_and_never_begin_are_released(history: GangHistory) -> None:
    names = history.ask(SIZE)
    history.exist(*names)
    history.ready(*names)
    released = events_of(decided(history.after(601), instances=shown(history, *names)))
    assert [type(each) for each in released] == [ev.MemberReleased] * SIZE


def test_a_gang_that_stands_ready_three_times_and_never_begins_fails_the_run(history: GangHistory) -> None:
    for _ in range(3):
        names = history.ask(SIZE)
        history.exist(*names)
        history.ready(*names)
        for name in names:
            history.released(name)
            history.lost(name, EndedBy.USER)
    (failed,) = events_of(decided(history))
    assert isinstance(failed, ev.RunFailed)
    assert "3 instances in a row ended before the agent took over" in failed.detail


def test_launch_without_a_ready_member_is_given_up_as_a_whole(history: GangHistory) -> None:
    names = history.ask(SIZE)
    history.exist(*names)
    silent = {names[1]: timedelta(minutes=5)}
    (closed,) = events_of(decided(history, instances=shown(history, *names), silent=silent))
    assert isinstance(closed, ev.LaunchClosed)
    history.write(closed)
    ends = decided(history, instances=shown(history, *names))
    assert [each.reason for each in ends if isinstance(each, Terminate)] == ["its launch is closed"] * SIZE


def test_afterwards_its_silent_members_are_condemned_one_by_one(history: GangHistory) -> None:
    names = history.ask(SIZE)
    history.exist(*names)
    history.ready(names[0])
    silent = dict.fromkeys(names[1:], timedelta(minutes=5))
    found = events_of(decided(history, instances=shown(history, *names), silent=silent))
    assert [(type(each), each.member) for each in found] == [(ev.InstanceCondemned, 1), (ev.InstanceCondemned, 2)]


def test_a_member_of_the_gang_that_is_silent_is_condemned(history: GangHistory) -> None:
    names = training(history)
    silent = {names[2]: timedelta(minutes=5)}
    (condemned,) = events_of(decided(history, instances=shown(history, *names), silent=silent))
    assert (type(condemned), condemned.member, condemned.cause) == (ev.InstanceCondemned, 2, Cause.HANG)


def missed(history: GangHistory, names: list[MemberName], *missing: MemberName) -> list[ev.AnyEvent]:
    """What is decided after another attempt that did not reach some."""
    history.end_without(*missing, cause=Cause.EXTERNAL)
    found = events_of(decided(history, instances=shown(history, *names)))
    if not found:
        history.ready(*names)
        history.start_gang(names)
    return found


def test_rule_39_a_member_that_twice_in_a_row_did_not_come_is_condemned(history: GangHistory) -> None:
    names = training(history)
    assert missed(history, names, names[1]) == []
    assert missed(history, names, names[2]) == [], "another one"
    assert missed(history, names, names[1]) == [], "not in a row"
    (condemned,) = missed(history, names, names[1])
    assert (type(condemned), condemned.member) == (ev.InstanceCondemned, 1)


def test_rule_39_a_lead_that_no_member_reached_is_the_one_that_is_cut_off(history: GangHistory) -> None:
    names = training(history)
    assert missed(history, names, *names[1:]) == []
    (condemned,) = missed(history, names, *names[1:])
    assert (type(condemned), condemned.member) == (ev.InstanceCondemned, 0)


def test_missing_member_is_requested_again_unless_it_reports_ready(history: GangHistory) -> None:
    names = training(history)
    history.end_without(names[2])
    history.ready(*names[:2])
    assert intended(decided(history, instances=shown(history, *names))) == []
    ((count, gang, zone),) = intended(decided(history.after(91), instances=shown(history, *names)))
    assert (count, gang, zone) == (1, history.state.attempts.values()[-1].number, "local-a")
    history.ready(names[2])
    assert intended(decided(history, instances=shown(history, *names))) == []


def test_a_run_that_has_ended_leaves_none_of_its_members(history: GangHistory) -> None:
    names = history.ask(SIZE + 1)
    history.exist(*names)
    history.ready(*names)
    history.start_gang(names[:SIZE])
    history.meet()
    history.completed(None)
    assert decided(history, instances=shown(history, *names)) == [], "they power off by themselves"
    ends = decided(history.after(181), instances=shown(history, *names))
    assert [each.instance_id for each in ends if isinstance(each, Terminate)] == [f"i-{name}" for name in names]


def test_a_gang_that_does_not_stop_when_asked_is_condemned(history: GangHistory) -> None:
    names = training(history)
    history.write(ev.StopRequested(by="me"))
    assert decided(history, instances=shown(history, *names)) == []
    found = events_of(decided(history.after(601), instances=shown(history, *names)))
    assert [(type(each), each.member) for each in found] == [(ev.InstanceCondemned, at) for at in range(SIZE)]


# -- what changes as a whole -------------------------------------------------------------------------------------------


def test_a_gang_goes_back_to_spot_once_all_who_replace_it_are_ready(history: GangHistory) -> None:
    old = history.ask(SIZE, offering=MARKET[3])
    assert history.state.launches[1].intent.offering.capacity_type is ON_DEMAND
    history.exist(*old)
    history.ready(*old)
    attempt = history.start_gang(old)
    history.meet()
    history.after(3600).training()
    (event,) = events_of(decided(history, instances=shown(history, *old)))
    assert isinstance(event, ev.LaunchIntended)
    assert (event.instances, event.beside, event.offering.zone) == (SIZE, attempt, "local-a")
    launch = history.write(event)
    new = [MemberName(launch, at) for at in range(SIZE)]
    history.exist(*new)
    history.ready(*new[:2])
    assert decided(history, instances=shown(history, *old, *new)) == []
    history.ready(new[2])
    (drain,) = events_of(decided(history, instances=shown(history, *old, *new)))
    assert isinstance(drain, ev.DrainRequested)
    history.write(drain)
    assert decided(history, instances=shown(history, *old, *new)) == [], "nobody else is needed"
    history.drained(None)
    assert available(history.state) == new
    history.ready(*new)
    history.start_gang(new)
    ends = decided(history.after(181), instances=shown(history, *old, *new))
    assert [each.instance_id for each in ends if isinstance(each, Terminate)] == [f"i-{name}" for name in old]


def test_a_gang_near_the_end_of_its_life_is_replaced_as_a_whole(history: GangHistory) -> None:
    names = training(history)
    attempt = history.attempt
    history.after(86_400 - 16 * 60 - 90)
    assert intended(decided(history, instances=shown(history, *names))) == []
    history.after(120)
    assert intended(decided(history, instances=shown(history, *names))) == [(SIZE, attempt, "local-a")]


def test_a_gang_lives_as_long_as_its_first_member(history: GangHistory) -> None:
    names = training(history)
    history.lost(names[0])
    (newcomer,) = history.after(3600).ask(1, history.state.attempts.values()[-1].number)
    history.exist(newcomer)
    history.ready(*names[1:], newcomer)
    history.start_gang([*names[1:], newcomer])
    first = history.state.member(names[1]).recorded
    assert first is not None
    gang = history.state.attempts[history.attempt]
    assert lives_until(history.state, gang) == first.billed_from + timedelta(days=1)


def test_a_start_is_measured_from_the_launch_that_the_gang_waited_for(history: GangHistory) -> None:
    names = training(history)
    history.lost(names[0])
    gang = history.state.attempts.values()[-1].number
    (newcomer,) = history.after(3600).ask(1, gang)
    history.exist(newcomer)
    history.after(40).ready(*names[1:], newcomer)
    again = history.start_gang([*names[1:], newcomer])
    history.meet()
    history.after(10).training()
    history.end_without()
    history.ready(*names[1:], newcomer)
    history.start_gang([*names[1:], newcomer])
    history.meet()
    history.after(5).training()
    assert measured_starts(history.state) == {gang: 100.0, again: 50.0}


def test_a_budget_pays_for_all_members_or_for_none() -> None:
    lives = {}
    for size in (1, 3):
        history = GangHistory(size, budget_usd=Decimal(9))
        (event,) = events_of(decided(history, spec(budget={"max_usd": 9})))
        assert isinstance(event, ev.LaunchIntended)
        lives[size] = event.time_to_live_s
    assert lives[3] == pytest.approx(lives[1] / 3, rel=0.01)


def test_a_gap_costs_the_budget_only_what_is_missing() -> None:
    """Three lives of a day at 3.60 held 259.20, and one of them is over: half of what is left pays for a life."""
    history = GangHistory(SIZE, budget_usd=Decimal(262))
    names = training(history)
    history.lost(names[1])
    (event,) = events_of(decided(history, spec(budget={"max_usd": 262}), shown(history, names[0], names[2])))
    assert isinstance(event, ev.LaunchIntended)
    assert event.time_to_live_s == pytest.approx(3600 * (262 - 2 * 86.40) / 2, rel=0.05)


# -- what is known of each ---------------------------------------------------------------------------------------------


def test_each_member_has_a_heartbeat_of_its_own() -> None:
    for name in (MemberName(17, 0), MemberName(17, 1), MemberName(17, 12)):
        assert name_in(agent_key(name.launch, name.member)) == name
    assert name_in("hints/agent-17.json") == MemberName(17, 0)
    assert name_in("hints/agent-17.0.json") is None, "one name, one key"


def test_a_gang_is_still_while_all_its_members_run(history: GangHistory) -> None:
    names = training(history)
    seen = shown(history, *names)
    assert is_still(history.state, seen)
    assert not is_still(history.state, seen[1:])
    assert not is_still(history.state, [*seen[1:], replace(seen[0], state=InstanceState.STOPPING)])
    noticed(history, names[2])
    assert not is_still(history.state, seen)


def test_a_member_that_the_cloud_never_showed_reserves_nothing_in_the_end(history: GangHistory) -> None:
    names = history.ask(SIZE, not_after=history.now + timedelta(minutes=10))
    history.exist(*names[:2])
    history.ready(*names[:2])
    assert events_of(decided(history.after(600), instances=shown(history, *names[:2]))) == []
    (gone,) = events_of(decided(history.after(601), instances=shown(history, *names[:2])))
    assert (type(gone), gone.member, gone.billed_from) == (ev.InstanceGone, 2, None)


def test_launch_with_a_ready_report_and_no_instance_is_over_in_the_end(history: GangHistory) -> None:
    """Anybody on an instance of the run may say that a member is ready. It can no longer be closed then."""
    names = history.ask(SIZE, not_after=history.now + timedelta(minutes=10))
    history.ready(names[1])
    assert decided(history) == [Execute(launch=1)]
    assert decided(history.after(601)) == [], "nobody may ask for it any more"
    for event in events_of(decided(history.after(600))):
        history.write(event)
    assert history.state.launches[1].settled


def test_instance_with_the_tags_of_an_unrequested_member_is_ended(history: GangHistory) -> None:
    names = training(history)
    (stranger,) = shown(history, MemberName(1, SIZE))
    (end,) = decided(history, instances=[*shown(history, *names), stranger])
    assert end == Terminate(instance_id=stranger.instance_id, reason="it only has the tags of launch 1")


def test_unobserved_end_of_a_member_is_its_last_heartbeat(history: GangHistory) -> None:
    names = training(history)
    heard_at = history.now + timedelta(minutes=2)
    history.after(3600)
    silent = {names[2]: timedelta(minutes=58)}
    world = {"silent": silent, "heard": {names[2]: heard_at}}
    found = events_of(decided(history, instances=shown(history, *names[:2]), **world))
    gone = [event for event in found if isinstance(event, ev.InstanceGone)]
    assert [(each.member, each.ended_at, each.bounded_by) for each in gone] == [(2, heard_at, "its last heartbeat")]


def test_a_member_that_said_that_it_is_ready_has_spoken(history: GangHistory) -> None:
    names = history.ask(SIZE)
    history.exist(*names)
    history.ready(names[0])
    seen = shown(history, *names)
    found = events_of(decided(history.after(900), instances=seen))
    assert [(type(each), each.member) for each in found] == [(ev.InstanceCondemned, 1), (ev.InstanceCondemned, 2)]


def test_a_newcomer_that_is_lost_in_its_boot_gives_the_others_no_more_patience(history: GangHistory) -> None:
    names = training(history)
    gang = history.attempt
    history.lost(names[2])
    (newcomer,) = history.after(60).ask(1, gang)
    history.exist(newcomer)
    history.after(59).lost(newcomer)
    history.after(2)
    released = events_of(decided(history, instances=shown(history, *names[:2])))
    assert [type(each) for each in released] == [ev.MemberReleased] * 2


def test_why_shows_the_next_decision_of_a_gang(history: GangHistory) -> None:
    names = history.ask(SIZE)
    history.exist(*names)
    history.ready(*names)
    assert next_decision(history.state, spec(), history.now) == "trains once all of its 3 members are ready"
    history.lost(names[1])
    told = "asks for the missing members; 2 of 3 are ready, wait about as long as a start takes, and are then released"
    assert next_decision(history.state, spec(), history.now) == told
    assert "i-1.0 (" in (alone := left_alone("demo", history.state))
    assert "i-1.2 (" in alone
    assert "i-1.1" not in alone


def test_an_append_names_the_member(history: GangHistory) -> None:
    names = history.ask(SIZE)
    actions = decided(history, instances=shown(history, *names))
    recorded = [action.event for action in actions if isinstance(action, Append)]
    assert [(type(each), each.member) for each in recorded] == [(ev.LaunchRecorded, at) for at in range(SIZE)]


# -- a gang whose size may change --------------------------------------------------------------------------------------


@pytest.fixture
def elastic() -> GangHistory:
    return GangHistory(SIZE, least=1)


def shrunk(history: GangHistory) -> list[MemberName]:
    """A gang that has lost its last member and trains without it."""
    names = training(history)
    history.lost(names[-1])
    history.ready(*names[:-1])
    history.start_gang(names[:-1])
    history.meet()
    history.after(15).training()
    return names[:-1]


def test_smaller_gang_trains_while_the_missing_member_is_requested(elastic: GangHistory) -> None:
    stay = shrunk(elastic)
    asked = decided(elastic, instances=shown(elastic, *stay))
    assert intended(asked) == [(1, elastic.attempt, "local-a")]
    refused_by_its_pool(elastic, asked)
    assert decided(elastic, instances=shown(elastic, *stay)) == [], "it goes on training, and asks again later"
    assert next_decision(elastic.state, spec(), elastic.now) == "trains with 2 of 3 members, and asks for 1 more"


def test_gang_regroups_once_the_newcomer_is_ready(elastic: GangHistory) -> None:
    stay = shrunk(elastic)
    (newcomer,) = elastic.ask(1, for_gang=elastic.attempt)
    elastic.exist(newcomer)
    everyone = shown(elastic, *stay, newcomer)
    assert decided(elastic, instances=everyone) == []
    coming = "trains with 2 of 3 members, and takes in 1 more once ready"
    assert next_decision(elastic.state, spec(), elastic.now) == coming
    elastic.ready(newcomer)
    (event,) = events_of(decided(elastic, instances=everyone))
    assert event == ev.DrainRequested(attempt=elastic.attempt, reason="1 member is ready to join", regroup=True)
    elastic.write(event)
    assert decided(elastic, instances=everyone) == [], "they all stay"
    elastic.drained(None)
    assert decided(elastic, instances=everyone) == []
    elastic.ready(*stay, newcomer)
    elastic.start_gang([*stay, newcomer])
    assert decided(elastic, instances=everyone) == []


def test_newcomer_waits_a_while_for_another_that_boots(elastic: GangHistory) -> None:
    names = training(elastic)
    for name in names[1:]:
        elastic.lost(name)
    elastic.ready(names[0])
    elastic.start_gang(names[:1])
    elastic.meet()
    one, two = elastic.ask(2, for_gang=elastic.attempt)
    elastic.exist(one, two)
    elastic.ready(one)
    everyone = shown(elastic, names[0], one, two)
    assert decided(elastic, instances=everyone) == []
    later = decided(elastic.after(JOIN_TOGETHER_WITHIN.total_seconds() + 1), instances=everyone)
    assert [type(event) for event in events_of(later)] == [ev.DrainRequested]
