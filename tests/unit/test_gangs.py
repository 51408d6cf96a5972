"""What the fold keeps of protocol 32 to 48, rule by rule; and what a gang costs."""

from __future__ import annotations

import random
from datetime import timedelta
from decimal import Decimal
from typing import get_args

import pytest
from msgspec import UNSET
from msgspec.structs import fields, replace

from spotrun.account.cross_region import crossings
from spotrun.account.losses import losses
from spotrun.account.prices import charges
from spotrun.account.summary import summarise
from spotrun.account.timeline import Activity
from spotrun.clock import ScaledClock
from spotrun.clouds.registry import cloud_of
from spotrun.folder.market_record import MarketRecord
from spotrun.instance import EndedBy
from spotrun.market.hazard import hazard_of, observed_hazard
from spotrun.market.observations import Fate, observations_of, past_of_living
from spotrun.report import machine_readable
from spotrun.report.describe import describe
from spotrun.report.terminal import lost_where
from spotrun.run import entry_bytes
from spotrun.run import events as ev
from spotrun.run.billing import ZERO
from spotrun.run.events import Cause, SetUp
from spotrun.run.fold import apply, fold
from spotrun.run.gang import MEMBERS_MAX, Gang, Layout, Meeting, MemberName
from spotrun.runner.creation import newborn
from spotrun.strategies.history import Past
from tests.support import gang_events as gang
from tests.support.decisions import spec
from tests.support.gang_history import GangHistory
from tests.support.histories import FREE_STORAGE, START, STORAGE, History, gone, offering, refused
from tests.support.memory_store import MemoryStore


def ready_gang(size: int = 2, members: int = 2) -> tuple[GangHistory, list[MemberName]]:
    history = GangHistory(size)
    names = history.ask(members)
    history.exist(*names)
    history.ready(*names)
    return history, names


def training_gang(size: int = 2) -> tuple[GangHistory, list[MemberName]]:
    history = GangHistory(size)
    return history, history.training_gang(size)


# -- a run on one instance, and one of another version ----------------------------------------------------------------


def of_gangs(history: History) -> list[ev.Event]:
    """An entry of each kind that speaks of gangs, where one instance trains."""
    attempt, launch = history.attempt, history.state.attempts[history.attempt].launch
    name, lead = MemberName(launch, 0), gang.gang_of([MemberName(launch, 0)])
    resumed = ev.ResumedFrom(attempt=attempt, incarnation=1, commit=None, epoch=0, step=0)
    end = gone(launch, history.now, billed_from=history.now)
    return [
        gang.intended(1),
        gang.recorded(name),
        ev.GuardArmed(launch=launch, member=0),
        ev.InstanceStopped(launch=launch, stopped_at=history.now, member=0),
        ev.DrainRequested(attempt=attempt, reason="test", regroup=True),
        ev.InstanceCondemned(launch=launch, cause=Cause.EXTERNAL, member=0),
        ev.MemberReleased(launch=launch, member=0, reason="test"),
        replace(end, member=0),
        ev.EndCorrected(launch=launch, ended_at=history.now, by="test", evidence="test", member=0),
        ev.AttemptStarted(launch=launch, instance_id=f"i-{launch}", booted_at=history.now, gang=lead),
        gang.ready(history.state, name),
        replace(resumed, meet=Meeting(address="127.0.0.1", port=1)),
        ev.NoticeSeen(attempt=attempt, kind="termination", deadline_at=None, member=name),
        ev.NoticesUnseen(attempt=attempt, detail="test", member=name),
        gang.committed_by(attempt, [gang.shard(attempt, 0, 1, 1)]),
        ev.AttemptEnded(attempt=attempt, cause=Cause.EXTERNAL, last_step=0, missing=()),
    ]


def test_gang_events_are_void_in_a_run_on_one_instance() -> None:
    """An older spotrun can not read such an entry: whoever can must fold the same state."""
    history = History()
    history.running()
    for event in of_gangs(history):
        refused(history, event, "the run is on one instance")


def test_each_event_that_can_speak_of_gangs_was_tried() -> None:
    history = History()
    history.running()
    can = {kind for kind in get_args(ev.AnyEvent) if any(field.default is UNSET for field in fields(kind))}
    can -= {ev.RunCreated}  # what was benched
    assert {type(event) for event in of_gangs(history)} == can | {ev.MemberReady, ev.MemberReleased}


def test_a_run_of_a_gang_has_a_version_of_its_own() -> None:
    history, _ = training_gang()
    assert history.state.created.ledger_version == ev.GANG_LEDGER_VERSION == ev.LEDGER_VERSION + 1
    assert history.state.voids == []


def test_the_version_of_a_run_follows_from_its_job() -> None:
    clock = ScaledClock(START, 1.0)
    assert newborn(spec(), cloud_of(spec()), clock).created.ledger_version == ev.LEDGER_VERSION
    two = newborn(spec().model_copy(update={"num_nodes": 2}), cloud_of(spec()), clock)
    assert two.of_gangs
    assert two.created.size == 2


def test_run_on_one_instance_writes_no_gang_fields() -> None:
    history = History()
    history.running()
    assert not any(ev.speaks_of_gangs(entry.event) for entry in history.entries)
    assert b"member" not in b"".join(map(entry_bytes.encode_entry, history.entries))


# -- launches ----------------------------------------------------------------------------------------------------------


def test_a_launch_reserves_the_lives_of_all_its_members() -> None:
    one, three = History(FREE_STORAGE), GangHistory(3, FREE_STORAGE)
    one.launch()
    three.ask(3)
    assert three.state.reserved_usd() == 3 * one.state.reserved_usd()


def test_a_budget_that_has_room_for_two_members_has_none_for_three() -> None:
    history = GangHistory(3, FREE_STORAGE, budget_usd=Decimal("3.60") * 24 * 2)
    refused(history, gang.intended(3), "the reservation exceeds the rest of the budget")
    assert history.ask(2)


def test_a_member_that_is_gone_frees_what_it_did_not_cost() -> None:
    history, names = training_gang()
    full = history.state.reserved_usd()
    history.after(3600).lost(names[1])
    left = history.state.reserved_usd()
    assert full / 2 < left < full / 2 + 1
    history.lost(names[0])
    assert history.state.reserved_usd() < 1
    assert history.state.unsettled == ()


@pytest.mark.parametrize("count", [0, MEMBERS_MAX + 1])
def test_a_launch_of_no_member_or_of_too_many_is_void(count: int) -> None:
    refused(GangHistory(), gang.intended(count), f"1 to {MEMBERS_MAX} members")


def test_a_launch_that_does_not_say_how_many_is_void() -> None:
    refused(GangHistory(), replace(gang.intended(1), count=UNSET), "how many members")
    refused(GangHistory(), replace(gang.intended(1), for_gang=UNSET), "how many members")


def test_a_gap_is_of_the_newest_gang() -> None:
    history, names = training_gang()
    attempt = history.attempt
    refused(history, gang.intended(1), "an attempt is current")
    refused(history, gang.intended(1, attempt - 1), "not the newest")
    refused(history, gang.intended(1, attempt, standby_for=attempt), "name their gang")
    history.end_without(names[1])
    refused(history, gang.intended(1, attempt - 1), "not the newest")
    history.ask(1, attempt)


def test_launch_is_pending_until_no_member_is_awaited() -> None:
    history = GangHistory(3)
    first, second, third = history.ask(3)
    history.exist(first, second, third)
    history.ready(first, second)
    refused(history, gang.intended(1), "another launch is pending")
    history.write(ev.InstanceCondemned(launch=third.launch, cause=Cause.EXTERNAL, member=third.member))
    history.lost(third)
    assert history.state.pending is None
    history.ask(1)


def test_each_member_is_recorded_by_itself() -> None:
    history = GangHistory(2)
    first, second = history.ask(2)
    history.exist(second)
    refused(history, gang.recorded(second), "already recorded")
    refused(history, gang.recorded(MemberName(first.launch, 2)), "there is no member")
    refused(
        history,
        replace(gang.recorded(first), instance_id=f"i-{second}"),
        "that instance already belongs to another member",
    )
    history.exist(first)
    launch = history.state.launches[first.launch]
    history.lost(first)
    assert launch.gone is None is history.state.launches[first.launch].gone
    assert history.state.launches[first.launch].open
    history.lost(second)
    assert not history.state.launches[first.launch].open


def test_a_guard_is_armed_for_one_member() -> None:
    history = GangHistory(2)
    first, second = history.ask(2)
    for name in (first, second):
        history.write(replace(gang.recorded(name), unguarded="access denied"))
    history.write(ev.GuardArmed(launch=second.launch, member=second.member))
    assert [recorded.instance_id for recorded in history.state.unguarded] == [f"i-{first}"]


# -- 32 to 36: who is named --------------------------------------------------------------------------------------------


def test_rule_32_no_gang_begins_while_another_is_current() -> None:
    history, names = ready_gang(size=1, members=2)
    first, second = names
    history.start_gang([first])
    refused(history, gang.started([second]), "an attempt is current")
    history.end_without()
    history.ready(second)
    history.start_gang([second])


def test_rule_32_a_gang_that_was_told_to_go_may_be_taken_over_from() -> None:
    history, (first, second) = ready_gang(size=1, members=2)
    attempt = history.start_gang([first])
    history.write(ev.DrainRequested(attempt=attempt, reason="spot is back"))
    history.start_gang([second])
    assert history.state.attempts[attempt].end is not None
    refused(history, gang.ready(history.state, second), "is in the current attempt")
    refused(history, gang.ready(history.state, first), "has to hand over")


def test_rule_33_who_was_named_has_to_say_it_again_after_the_end() -> None:
    history, names = training_gang()
    refused(history, gang.ready(history.state, names[0]), "is in the current attempt")
    history.end_without(names[1])
    refused(history, gang.started(names), "has not reported ready since the last attempt ended")
    history.ready(*names)
    history.start_gang(names)


def test_rule_33_a_word_from_before_the_end_is_void() -> None:
    history, names = ready_gang(size=2, members=3)
    late = gang.ready(history.state, names[2])
    history.start_gang(names[:2])
    history.end_without(names[1])
    refused(history, late, "an attempt has ended since the member reported ready")
    refused(history, gang.started([names[0], names[2]]), "has not reported ready since the last attempt ended")


def test_rule_33_the_members_of_a_gang_that_leaves_are_not_named_in_the_next() -> None:
    history, names = ready_gang(size=2, members=3)
    attempt = history.start_gang(names[:2])
    history.write(ev.DrainRequested(attempt=attempt, reason="spot is back"))
    refused(history, gang.started(names[1:]), "has to hand over")


def test_rule_34_one_word_after_each_end_is_taken() -> None:
    history, (first, second) = ready_gang()
    refused(history, gang.ready(history.state, first), "already reported this")
    history.start_gang([first, second])
    history.end_without(second)
    history.ready(first)


@pytest.mark.parametrize("fate", ["condemned", "released", "gone", "closed"])
def test_rule_35_who_has_to_end_is_neither_ready_nor_named(fate: str) -> None:
    history = GangHistory()
    names = history.ask(2)
    history.exist(*names)
    last = names[1]
    if fate != "closed":
        history.ready(*names)
    match fate:
        case "condemned":
            history.write(ev.InstanceCondemned(launch=last.launch, cause=Cause.EXTERNAL, member=last.member))
        case "released":
            history.released(last)
        case "gone":
            history.lost(last)
        case "closed":
            history.close(last.launch, Cause.EXTERNAL)
    refused(history, gang.ready(history.state, last), "condemned, released, closed or gone")
    if fate != "closed":
        refused(history, gang.started(names), "condemned, released, closed or gone")


def test_rule_35_an_instance_is_one_member() -> None:
    history = GangHistory()
    names = history.ask(2)
    history.exist(*names)
    refused(history, gang.ready(history.state, names[0], instance_id=f"i-{names[1]}"), "another instance")
    refused(history, gang.ready(history.state, names[0], holds=10**6), "no such checkpoint")
    refused(history, gang.ready(history.state, MemberName(names[0].launch, 2)), "there is no member")


def test_whom_a_runner_told_to_hand_over_and_whom_the_cloud_takes_has_nothing_to_wait_for() -> None:
    history, (first, second) = training_gang()
    attempt = history.attempt
    assert not any(map(history.state.has_to_leave, (first, second)))
    history.write(ev.NoticeSeen(attempt=attempt, kind="termination", deadline_at=history.now, member=second))
    history.drained(None)
    assert [history.state.has_to_leave(name) for name in (first, second)] == [False, True]
    history.ready(first)
    refused(history, gang.ready(history.state, second), "or the cloud is taking it")
    (third,) = history.ask(1, attempt)
    history.exist(third)
    history.ready(third)
    refused(history, gang.started([first, second]), "or the cloud is taking it")
    history.start_gang([first, third])
    history.write(ev.DrainRequested(attempt=history.attempt, reason="spot is back"))
    assert all(map(history.state.has_to_leave, (first, second, third)))


def test_an_attempt_that_ends_without_members_is_followed_by_another() -> None:
    """Whom the others did not reach says nothing about the training."""
    for missing, gave_up in (((MemberName(1, 1),), False), ((), True)):
        history, _ = training_gang()
        history.end_without(*missing, cause=Cause.EXTERNAL)
        (attempt,) = history.state.attempts.values()
        assert attempt.end is not None
        assert attempt.end.gave_up is gave_up


def test_rule_36_ranks_follow_the_names_and_the_lead_is_the_first() -> None:
    history, names = ready_gang()
    whole = gang.started(names)
    assert isinstance(whole.gang, Gang)
    refused(history, gang.started(names[::-1]), "do not follow the order of its names")
    refused(history, gang.started(names[:1]), "has 2 members")
    refused(history, replace(whole, gang=replace(whole.gang, members=())), "names no members")
    refused(history, replace(whole, gang=UNSET), "names no members")
    refused(history, replace(whole, gang=replace(whole.gang, world=1)), "do not match its number of processes")
    refused(history, replace(whole, gang=replace(whole.gang, batches=(1, 0))), "a part of each batch")
    refused(history, replace(whole, instance_id=f"i-{names[1]}"), "does not describe its lead")
    refused(history, gang.started([names[0], MemberName(names[0].launch, 2)]), "there is no member")
    history.start_gang(names, ranks_each=2)
    attempt = history.state.current
    assert attempt is not None
    assert attempt.gang is not None
    assert attempt.gang.world == 4
    assert attempt.names == tuple(names)


def test_rule_36_survivors_come_before_newcomers() -> None:
    history, (first, second) = training_gang()
    history.end_without(first)
    history.lost(first)
    (newcomer,) = history.ask(1, history.state.attempts.values()[-1].number)
    history.exist(newcomer)
    history.ready(newcomer, second)
    refused(history, gang.started([newcomer, second]), "do not follow the order of its names")
    history.start_gang([second, newcomer])


# -- 37, 42, 43: trainers and commits ----------------------------------------------------------------------------------


def test_rule_37_each_incarnation_meets_at_the_lead_and_in_a_new_place() -> None:
    history, names = ready_gang()
    history.start_gang(names)
    refused(history, replace(gang.resumed(history.state), meet=UNSET), "where the trainers meet")
    elsewhere = Meeting(address="127.77.9.9", port=29_500)
    refused(history, gang.resumed(history.state, meet=elsewhere), "would not meet at the lead")
    history.meet(port=29_500)
    history.training()
    history.exited()
    refused(history, gang.resumed(history.state, 29_500), "earlier trainers met at this address")
    history.meet(port=29_501)


def test_rule_42_a_commit_repeats_what_each_shard_says() -> None:
    history, _ = training_gang()
    history.step = 10
    whole = history.shards()
    first, second = whole.shards
    refused(history, replace(whole, shards=UNSET), "which rank stored which part")
    refused(history, replace(whole, layout=UNSET), "which rank stored which part")
    refused(history, replace(whole, shards=()), "which rank stored which part")
    refused(history, replace(whole, shards=(first,)), "shards are missing")
    refused(history, replace(whole, shards=(second, first)), "shards are missing")
    refused(history, replace(whole, layout=Layout.REPLICATED), "shards are missing")
    for field in ("attempt", "incarnation", "snapshot", "step", "world"):
        other = replace(second, **{field: getattr(second, field) + 1})
        refused(history, replace(whole, shards=(first, other)), "from different snapshots")
    refused(history, replace(whole, step=11), "from different snapshots")
    refused(history, replace(whole, size_bytes=1), "do not match its shards")
    refused(history, replace(whole, manifest_blake3="f" * 64), "do not match its shards")
    number = history.write(whole)
    assert history.state.latest_commit() == history.state.commit(number)


def test_rule_42_of_replicated_state_rank_0_alone_has_a_part() -> None:
    history, _ = training_gang()
    history.step = 10
    assert history.shards(layout=Layout.REPLICATED).puts == 2
    assert history.shards().puts == 4
    history.commit_shards(layout=Layout.REPLICATED)


def test_rule_43_only_the_newest_trainer_of_the_newest_attempt_commits() -> None:
    history, names = training_gang()
    history.step = 10
    old = history.shards()
    history.exited()
    history.meet()
    refused(history, old, "a newer trainer has begun")
    history.end_without(names[1])
    history.ready(*names)
    history.start_gang(names)
    history.meet()
    refused(history, old, "is not the current one")


def test_rule_43_what_a_lead_has_left_counts_until_another_attempt_begins() -> None:
    history, names = training_gang()
    ended = history.attempt
    history.step = 10
    history.commit_shards(snapshot=0)
    history.step = 20
    held = history.shards(snapshot=1)
    history.step = 30
    late = history.shards(snapshot=2)
    history.lost(names[1])
    more = history.ask(1, for_gang=ended)
    history.exist(*more)
    history.ready(*more)
    number = history.write(held)
    assert history.state.latest_commit() == history.state.commit(number)
    history.ready(names[0])
    history.start_gang([names[0], *more])
    refused(history, late, "is not the current one")


def test_rule_43_nothing_is_committed_once_the_run_has_ended() -> None:
    history, names = training_gang()
    history.step = 10
    held = history.shards()
    history.lost(names[1])
    history.write(ev.RunFailed(cause=Cause.EXTERNAL, detail="test"))
    refused(history, held, "the run has ended")


def test_rule_43_an_older_snapshot_is_not_committed_behind_a_newer_one() -> None:
    history, _ = training_gang()
    history.step = 10
    early = history.shards(snapshot=0)
    history.step = 20
    history.commit_shards(snapshot=1)
    refused(history, early, "a newer snapshot is committed")
    history.step = 30
    history.commit_shards(snapshot=2)


# -- 44 to 47: ends ----------------------------------------------------------------------------------------------------


def test_rule_44_an_attempt_ends_without_its_members() -> None:
    history, names = training_gang()
    stranger = ev.AttemptEnded(
        attempt=history.attempt, cause=Cause.INTERRUPTED, last_step=0, missing=(MemberName(names[0].launch, 7),)
    )
    refused(history, stranger, "is not in the attempt")
    history.end_without(names[1])
    end = history.state.attempts.values()[-1].end
    assert end is not None
    assert end.missing == (names[1],)
    assert all(history.state.member(name).gone is None for name in names)


def test_rule_44_the_end_of_one_instance_is_that_of_its_attempt() -> None:
    history, names = training_gang()
    history.lost(names[1])
    assert history.state.current is None
    assert history.state.last_end == history.entries[-1].number


def test_rule_45_what_is_named_first_counts() -> None:
    history, names = ready_gang(size=2, members=3)
    history.start_gang(names[:2])
    trains = ev.MemberReleased(launch=names[0].launch, member=names[0].member, reason="too late")
    refused(history, trains, "is in the current attempt")
    history.released(names[2])
    refused(history, replace(trains, member=names[2].member), "already released")
    assert not history.state.ended_by_hand(history.end_of(names[2], EndedBy.USER))


def test_rule_46_a_launch_is_closed_until_one_of_its_members_was_ready() -> None:
    history = GangHistory()
    names = history.ask(2)
    history.exist(*names)
    closed = ev.LaunchClosed(launch=names[0].launch, cause=Cause.EXTERNAL)
    history.ready(names[0])
    refused(history, closed, "a member of the launch was ready")


def test_rule_47_of_two_notices_that_of_the_earlier_deadline_counts() -> None:
    history, (first, second) = training_gang()
    seen = ev.NoticeSeen(attempt=history.attempt, kind="termination", deadline_at=history.now, member=second)
    refused(history, replace(seen, member=UNSET), "which member")
    refused(history, replace(seen, member=MemberName(second.launch, 2)), "is not in the attempt")
    history.write(seen)
    history.write(replace(seen, member=first, deadline_at=history.now + timedelta(minutes=1)))
    assert history.state.current is not None
    assert history.state.current.notice == seen


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_the_dollars_of_all_members_accrue() -> None:
    gangs, alone = GangHistory(2, FREE_STORAGE), History(FREE_STORAGE)
    gangs.training_gang()
    alone.running()
    for history in (gangs, alone):
        history.after(3600)
    ours, theirs = (summarise(history.state, history.now).total for history in (gangs, alone))
    assert ours.spot_usd == 2 * theirs.spot_usd > ZERO
    assert ours.paid == 2 * theirs.paid
    assert ours.counterfactual_usd == 2 * theirs.counterfactual_usd
    assert ours.times == theirs.times


def test_each_member_has_its_own_prices() -> None:
    history = GangHistory(2)
    first, second = history.ask(2)
    history.exist(first, price="0.36")
    history.after(600).exist(second, price="0.48")
    history.after(600).lost(first, EndedBy.USER)
    launch = history.state.launches[first.launch]
    found = charges(launch, history.state.created.billing, history.after(600).now)
    hours = [(str(charge.usd_per_hour), (charge.until - charge.since).total_seconds()) for charge in found]
    assert hours == [("0.36", 1200), ("0.48", 1200)]


def test_a_loss_of_two_members_is_one_interruption() -> None:
    history, names = training_gang(3)
    history.step = 50
    history.after(600).end_without(*names[1:])
    for name in names[1:]:
        history.after(10).lost(name, ended_at=history.now - timedelta(seconds=10))
    more = history.ask(2, history.state.attempts.values()[-1].number)
    history.after(10).exist(*more)
    history.after(60).ready(*more, names[0])
    history.start_gang([names[0], *more])
    history.meet()
    history.after(5).training()
    (found,) = losses(history.state)
    assert found.members == (*names[1:],)
    assert found.steps_lost == 50
    assert found.to_first_step == timedelta(seconds=95)
    assert summarise(history.state, history.now).total.interruptions == 1


def test_an_interruption_says_which_members_were_lost() -> None:
    history, names = training_gang(3)
    for name in names[1:]:
        history.lost(name)
    summary = summarise(history.state, history.after(60).now)
    told = machine_readable.report(summary)["interruptions"][0]
    assert (told["members"], told["lost_members"]) == (2, [*map(str, names[1:])])
    assert lost_where(summary.losses[0]).endswith(f", {names[1]}, {names[2]}")


@pytest.mark.parametrize("by", [EndedBy.CLOUD, EndedBy.FAULT, EndedBy.USER])
def test_loss_of_a_member_that_the_others_missed_first_has_the_cause_of_its_end(by: EndedBy) -> None:
    history, names = training_gang(3)
    history.step = 50
    history.after(600).end_without(names[2], cause=Cause.EXTERNAL)
    history.after(30).lost(names[2], by)
    more = history.ask(1, history.state.attempts.values()[-1].number)
    history.after(10).exist(*more)
    history.after(60).ready(*more, *names[:2])
    history.start_gang([*names[:2], *more])
    history.meet()
    summary = summarise(history.state, history.after(5).now)
    (found,) = summary.losses
    taken = by is EndedBy.CLOUD
    assert found.cause == (Cause.INTERRUPTED if taken else by)
    assert (found.members, found.steps_lost, summary.total.interruptions) == ((names[2],), 50, int(taken))


def test_member_that_was_out_of_reach_and_trains_again_is_no_interruption() -> None:
    history, names = training_gang(3)
    history.step = 50
    history.after(600).end_without(names[2], cause=Cause.EXTERNAL)
    history.after(60).ready(*names)
    history.start_gang(names)
    history.meet()
    history.lost(names[2])
    first, second = losses(history.state)
    assert (first.cause, first.members, first.steps_lost) == (Cause.EXTERNAL, (), 50)
    assert (second.cause, second.members, second.steps_lost) == (Cause.INTERRUPTED, (names[2],), 0)


def test_member_with_a_notice_counts_as_lost_though_it_ended_itself() -> None:
    history, (first, _) = training_gang()
    history.write(ev.NoticeSeen(attempt=history.attempt, kind="termination", deadline_at=history.now, member=first))
    history.drained(None)
    history.after(10).lost(first, EndedBy.ITSELF)
    (found,) = losses(history.state)
    assert found.members == (first,)


def test_dollars_of_waiting_members_are_reported() -> None:
    """0.36 an hour is a hundredth of a cent a second. The first wait is that for the slower one of two."""
    history = GangHistory(2, FREE_STORAGE)
    first, second = history.ask(2)
    history.exist(first, second)
    history.after(50).ready(first)
    history.after(20).ready(second)
    history.start_gang([first, second])
    history.meet()
    history.training()
    history.after(100).lost(second)
    third, *_ = history.ask(1, history.state.attempts.values()[-1].number)
    history.ready(first)
    history.after(30).exist(third)
    history.after(40).ready(third)
    history.start_gang([first, third])
    history.meet()
    history.training()
    history.after(1000)
    total = summarise(history.state, history.now).total
    assert total.waiting_usd == Decimal("0.0001") * (20 + 70)
    assert total.waiting_usd < total.spot_usd
    told = machine_readable.report(summarise(history.state, history.now))
    assert told["total"]["waiting_members_usd"] == "0.009000000"


def test_whom_its_gang_has_let_go_and_who_is_left_when_the_run_ends_waits_for_nothing() -> None:
    history, _ = training_gang()
    history.write(ev.DrainRequested(attempt=history.attempt, reason="spot is back"))
    history.drained(None)
    history.after(500).write(ev.RunStopped(reason="test"))
    history.after(500)
    assert summarise(history.state, history.now).total.waiting_usd == 0


def test_two_members_lost_in_one_moment_are_two_losses_of_their_pool_and_one_of_the_gang() -> None:
    """A pool's hazard is that of one instance, and a gang's that of its attempts."""
    history, names = training_gang(3)
    history.after(3600)
    for name in names[1:]:
        history.lost(name)
    seen = list(observations_of(history.state))
    assert [(each.member, each.kind) for each in seen] == [(1, Fate.LOST), (2, Fate.LOST)]
    living = past_of_living(history.state, history.now)
    pool = history.state.launches[names[0].launch].intent.offering.pool
    assert [*living] == [pool]
    assert living[pool] == Past.of(lost=False, up_s=seen[0].up_s, ago_s=0.0)
    up_s = 3600 + 15
    assert observed_hazard(history.state, history.now) == hazard_of(timedelta(seconds=up_s), losses=1)


def test_the_time_of_survivors_counts_once() -> None:
    history, names = training_gang()
    for _ in range(3):
        history.after(600).end_without(cause=Cause.REPLACED)
        history.ready(*names, booted_at=START)
        history.start_gang(names)
        history.meet()
    assert observed_hazard(history.state, history.now) == hazard_of(timedelta(seconds=3 * 600 + 15), losses=0)


def test_a_notice_is_the_loss_of_the_member_that_it_names() -> None:
    history, (_, second) = training_gang()
    deadline_at = history.after(600).now + timedelta(minutes=2)
    history.write(ev.NoticeSeen(attempt=history.attempt, kind="termination", deadline_at=deadline_at, member=second))
    assert [(each.member, each.kind) for each in observations_of(history.state)] == [(1, Fate.LOST)]
    history.after(120).lost(second)
    assert [(each.member, each.kind) for each in observations_of(history.state)] == [(1, Fate.LOST)]


def test_simultaneous_losses_of_two_members_are_two_observations() -> None:
    history, names = training_gang(3)
    for name in names[1:]:
        history.lost(name)
    store = MemoryStore()
    MarketRecord(store).exchange(history.state, [offering()], history.now)
    reader = GangHistory(2, uid="reader")
    found = MarketRecord(store).exchange(reader.state, [offering()], history.now)
    assert sorted(each.member for each in found) == [1, 2]


def test_a_launch_whose_members_were_taken_before_they_ran_was_refused() -> None:
    history = GangHistory()
    names = history.ask(2)
    for name in names:
        history.lost(name)
    assert [each.kind for each in observations_of(history.state)] == [Fate.REFUSED]


def test_each_member_is_set_up_and_one_set_up_is_kept() -> None:
    """Both have made it at once; a third unpacks it later. What crosses regions crosses for each of them."""
    elsewhere = replace(STORAGE, region="elsewhere")
    gangs = GangHistory(2, storage=elsewhere)
    names = gangs.ask(2)
    gangs.exist(*names)
    setups = [SetUp(seconds=9, how=how, packed_bytes=10**12) for how in ("run", "unpacked")]
    for name, setup in zip(names, setups, strict=True):
        gangs.after(10).ready(name, setup=setup)
    gangs.start_gang(names)
    assert [(one.launch.number, one.setup) for one in gangs.state.packed] == [(names[0].launch, setups[0])]
    crossed = [usd for _, usd in crossings(gangs.state, gangs.state.launches.values()) if usd]
    assert crossed == [elsewhere.egress_usd_per_gb * 1000] * 2


def test_while_a_gap_is_filled_the_run_boots() -> None:
    """The survivor has booted long ago; the newcomer has not."""
    history, names = training_gang()
    history.after(600).end_without(names[1])
    ended_at = history.now
    (newcomer,) = history.after(20).ask(1, history.state.attempts.values()[-1].number)
    history.after(10).exist(newcomer)
    history.after(40).ready(newcomer)
    history.after(30).ready(names[0], booted_at=ended_at - timedelta(hours=1))
    history.start_gang([names[0], newcomer])
    times = summarise(history.state, history.now).total.times
    found = [times[kind].total_seconds() for kind in (Activity.WAIT, Activity.BOOT, Activity.SETUP)]
    assert found == [20, 60 + 50, 25 + 30]


def test_the_bill_corrects_the_end_of_one_member() -> None:
    history, names = training_gang()
    began = history.now
    history.after(3600)
    for name in names:
        history.write(history.end_of(name, bounded_by="its last heartbeat"))
    before = summarise(history.state, history.now).total.spot_usd
    corrected = ev.EndCorrected(
        launch=names[1].launch, member=1, ended_at=began + timedelta(minutes=30), by="test", evidence="the bill"
    )
    history.write(corrected)
    refused(history, corrected, "the instance already has this end")
    refused(history, replace(corrected, ended_at=began - timedelta(days=2)), "not between")
    assert before - summarise(history.state, history.now).total.spot_usd == Decimal("0.18")
    assert history.state.settled_usd == sum(
        (launch.reserved_usd(history.state.created.billing) for launch in history.state.launches.values()), ZERO
    )


def random_gang(seed: int) -> GangHistory:
    """Gangs that lose members, in any state of their lives, until the run ends or the dice say so."""
    rng = random.Random(seed)
    size = rng.randint(1, 4)
    history = GangHistory(size)
    names = history.training_gang(size, rng.choice(["0.1234567", "0.36", "3"]))
    for epoch in range(rng.randint(1, 4)):
        history.step += 100
        history.after(rng.randrange(6000) / 7).epoch(epoch)
        history.commit_shards(0, rng.choice(list(Layout)))
        taken = rng.sample(names, rng.randint(1, size))
        history.after(rng.randrange(900) / 7).end_without(*taken)
        for name in taken:
            history.after(rng.randrange(60)).lost(name, rng.choice(list(EndedBy)))
        more = history.after(rng.randrange(100)).ask(len(taken), history.state.attempts.values()[-1].number)
        history.after(7).exist(*more, price=rng.choice(["0.1234567", "0.77"]))
        names = sorted({*names, *more} - {*taken})
        history.after(50).ready(*names)
        history.start_gang(names)
        history.meet()
        history.after(15).training()
    return history


@pytest.mark.parametrize("seed", range(25))
def test_the_account_of_a_gang_sums_to_the_nano_dollar(seed: int) -> None:
    history = random_gang(seed)
    rule, now = history.state.created.billing, history.after(100).now
    found = summarise(history.state, now)
    parts = [*found.epochs, found.rest]
    assert sum((part.cost_usd for part in parts), ZERO) == found.total.cost_usd
    assert sum((part.paid for part in parts), timedelta()) == found.total.paid
    meters = [meter for launch in history.state.launches.values() for meter in launch.meters(rule)]
    assert found.total.spot_usd == sum((meter.cost_until(now) for meter in meters), ZERO)
    assert found.total.interruptions == [each.cause for each in found.losses].count(Cause.INTERRUPTED)
    assert found.total.steps_redone == sum(each.steps_lost for each in found.losses)


@pytest.mark.parametrize("seed", range(5))
def test_a_ledger_of_a_gang_is_read_back_in_parts_and_told_in_sentences(seed: int) -> None:
    entries = random_gang(seed).entries
    assert [entry_bytes.decode_entry(entry_bytes.encode_entry(entry)) for entry in entries] == entries
    for cut in range(1, len(entries), 7):
        assert fold(entries[cut:], fold(entries[:cut])) == fold(entries)
    assert all("UNSET" not in describe(entry) for entry in entries)


@pytest.mark.parametrize("seed", range(20))
def test_entries_of_a_gang_in_any_order_never_break_the_rules(seed: int) -> None:
    """What is late, twice or out of turn is accepted or void; the fold fails at none of it."""
    rng, entries = random.Random(seed), random_gang(seed).entries
    begun = rng.randint(8, len(entries) * 3 // 4)
    state = fold(entries[:begun])
    for number in range(begun, begun + 200):
        event = rng.choice(entries[1:]).event
        if hasattr(event, "attempt") and state.current_attempt is not None:
            event = replace(event, attempt=state.current_attempt)
        state = apply(state, replace(entries[1], number=number, nonce=f"n{number}", event=event))
        assert state.next_number == number + 1
        assert sum(attempt.end is None for attempt in state.attempts.values()) <= 1
        assert sum(launch.pending for launch in state.launches.values()) <= 1
        assert all(len(set(attempt.names)) == state.created.size for attempt in state.attempts.values())
    assert begun < len(state.entry_times) - len(state.voids), "nothing was accepted"


# -- a gang whose size may change -------------------------------------------------------------------------------------


def test_only_an_elastic_gang_may_be_smaller_and_regroup() -> None:
    fixed, names = training_gang(3)
    refused(fixed, ev.DrainRequested(attempt=fixed.attempt, reason="test", regroup=True), "keeps its size")
    fixed.lost(names[2])
    fixed.ready(*names[:2])
    refused(fixed, gang.started(names[:2]), "a gang of this run has 3 members")


def test_elastic_gang_is_not_smaller_than_its_job_allows() -> None:
    history = GangHistory(4, least=2)
    names = history.training_gang(4)
    for name in names[2:]:
        history.lost(name)
    history.ready(*names[:2])
    refused(history, gang.started(names[:1]), "a gang of this run has 2 to 4 members")
    history.start_gang(names[:2])
    assert history.state.created.ledger_version == ev.ELASTIC_LEDGER_VERSION == ev.GANG_LEDGER_VERSION + 1


@pytest.mark.parametrize("least", [0, 5, "two", None, 2.5])
def test_minimum_that_is_no_size_of_the_gang_counts_as_its_size(least: object) -> None:
    history = GangHistory(4, least=least)  # type: ignore[arg-type]
    assert history.state.created.least == 4
