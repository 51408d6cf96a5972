"""What the fold accepts, rule by rule (numbers are those of protocol.md), and that what it refuses has no effect."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from spotrun.instance import EndedBy
from spotrun.run import events as ev
from spotrun.run.events import Cause, Entry
from spotrun.run.fold import apply, begin, fold
from spotrun.run.refusal import Refusal
from tests.support.histories import ON_DEMAND, History, gone, histories, refused


def refuses(history: History, write: Callable[[], object], because: str) -> None:
    """The same for what a History writes with one of its methods."""
    with pytest.raises(AssertionError, match=because):
        write()


def intent(history: History, **changes: object) -> ev.LaunchIntended:
    other = History()
    number = other.launch()
    event = other.state.launches[number].intent
    return replace(event, standby_for=history.state.current_attempt, not_after=history.now, **changes)


def started(launch: int, history: History) -> ev.AttemptStarted:
    return ev.AttemptStarted(launch=launch, instance_id=f"i-{launch}", booted_at=history.now)


def training() -> History:
    history = History()
    history.running()
    history.step = 10
    return history


# -- entry 0 (rules 3 and 5) -----------------------------------------------------------------------------------------


def test_only_entry_0_creates_a_run() -> None:
    history = History()
    refused(history, history.entries[0].event, "only entry 0")


def test_a_run_of_another_ledger_version_is_not_folded() -> None:
    created = History().entries[0]
    with pytest.raises(Refusal, match=f"version {max(ev.READABLE_VERSIONS) + 1}"):
        begin(replace(created, event=replace(created.event, ledger_version=max(ev.READABLE_VERSIONS) + 1)))


def test_an_entry_of_another_run_is_void() -> None:
    history = training()
    foreign = replace(history.entry(ev.StopRequested(by="x")), run="ffffffffff")
    state = apply(history.state, foreign)
    assert state.voids[-1].reason == "the entry belongs to another run"
    assert not state.stop_requested


# -- launching (8 to 11) ---------------------------------------------------------------------------------------------


def test_one_launch_at_most_is_pending() -> None:
    history = History()
    launch = history.launch()
    refused(history, intent(history), "another launch is pending")
    history.close(launch)
    history.write(intent(history))


def test_a_closed_launch_never_starts_and_closing_is_for_ever() -> None:
    history = History()
    launch = history.launch()
    history.record(launch)
    history.close(launch)
    refused(history, started(launch, history), "closed")
    refused(history, ev.LaunchClosed(launch=launch, cause=Cause.CAPACITY), "already closed")


def test_a_launch_that_has_started_cannot_be_closed() -> None:
    history = training()
    launch = history.state.current.launch
    refused(history, ev.LaunchClosed(launch=launch, cause=Cause.CAPACITY), "has started an attempt")


def test_an_instance_of_a_closed_launch_is_still_billed() -> None:
    history = History()
    launch = history.launch()
    history.close(launch, Cause.EXTERNAL)
    history.record(launch)
    history.after(3600).gone(launch, EndedBy.USER)
    assert history.state.reserved_usd() == Decimal("0.36")


def test_a_launch_that_was_closed_without_an_answer_stays_reserved_until_nothing_was_found() -> None:
    """A runner asked, heard nothing, and another closed the launch: a day of somebody's instance may come to light."""
    history = History(budget_usd=Decimal(100))
    unanswered = history.launch(on_demand="3.00")
    history.close(unanswered, answered=False)
    assert history.state.reserved_usd() == Decimal(72)
    history.write(nothing_was_seen(unanswered, history.now))
    assert history.state.reserved_usd() == 0
    history.close(history.launch(on_demand="3.00"))
    assert history.state.reserved_usd() == 0, "the cloud refused it"


def nothing_was_seen(launch: int, at: datetime) -> ev.InstanceGone:
    return gone(launch, at, EndedBy.FAULT, instance_id="", evidence="the cloud never showed an instance of it")


def test_no_launch_is_dearer_than_the_price_cap() -> None:
    history = History(price_cap_usd_per_hour=Decimal(2))
    refused(history, intent(history, price_ceiling_usd_per_hour=Decimal("2.01")), "price cap")
    history.write(intent(history, price_ceiling_usd_per_hour=Decimal(2)))


def test_open_launches_reserve_their_whole_life_at_their_ceiling() -> None:
    history = History(budget_usd=Decimal(100))
    launch = history.launch(on_demand="3.00")  # a day of it is $ 72
    history.start(launch)
    refused(history, intent(history, price_ceiling_usd_per_hour=Decimal("1.20")), "budget")
    history.record(launch)
    history.after(3600).gone(launch, EndedBy.USER)
    assert history.state.reserved_usd() == Decimal("0.36"), "what is gone costs what it cost"
    history.write(intent(history, price_ceiling_usd_per_hour=Decimal("4.15")))


def test_a_life_below_nothing_cannot_free_a_budget() -> None:
    history = History(budget_usd=Decimal(1))
    for seconds in (0.0, -86_400.0, 1e12):
        refused(history, intent(history, time_to_live_s=seconds), "the time-to-live is out of bounds")


def test_nothing_is_launched_after_a_stop_was_requested_or_the_run_has_ended() -> None:
    history = History()
    history.write(ev.StopRequested(by="test"))
    refused(history, intent(history), "stop was requested")
    history.write(ev.RunStopped(reason="asked"))
    refused(history, intent(history), "the run has ended")


# -- attempts and handover (12 to 16) --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["unknown", "condemned", "gone", "started already", "ended run"])
def test_an_attempt_starts_from_an_open_launch_only(how: str) -> None:
    history = History()
    launch = history.launch()
    history.record(launch)
    if how == "condemned":
        history.write(ev.InstanceCondemned(launch=launch, cause=Cause.HANG))
    elif how == "gone":
        history.gone(launch)
    elif how == "started already":
        history.start(launch)
    elif how == "ended run":
        history.write(ev.RunStopped(reason="test"))
    refused(history, started(999 if how == "unknown" else launch, history), "")


def test_a_standby_takes_over_and_fences_its_predecessor() -> None:
    history = training()
    old, standby = history.attempt, history.launch()
    history.start(standby)
    assert history.attempt != old
    assert history.state.attempts[old].end.cause is Cause.REPLACED
    zombie = [
        ev.CheckpointFailed(attempt=old, step=1, detail=""),
        ev.EpochCompleted(attempt=old, epoch=0, step=1, ended_at=history.now),
        ev.NoticeSeen(attempt=old, kind="termination", deadline_at=None),
        ev.AttemptDrained(attempt=old, final_commit=None, stopped_at=history.now, reason=""),
        ev.AttemptEnded(attempt=old, cause=Cause.HANG, last_step=1),
        ev.RunCompleted(attempt=old, final_commit=None, step=1),
        ev.DrainRequested(attempt=old, reason=""),
        ev.TrainerExited(attempt=old, incarnation=0, cause=Cause.USER_ERROR, exit_code=1, step=1),
        ev.ResumedFrom(attempt=old, incarnation=1, commit=None, epoch=0, step=0),
        ev.TrainingStarted(attempt=old, incarnation=0, step=1),
    ]
    for event in zombie:
        refused(history, event, "not the current one")


def test_a_zombies_commit_is_void() -> None:
    history = training()
    commit = history.entries[history.commit()].event
    old = history.attempt
    history.start(history.launch())
    refused(history, replace(commit, attempt=old, prefix="late"), "not the current one")
    assert len(history.state.commits) == 1


def test_an_older_launch_cannot_take_over_from_a_newer_one() -> None:
    history = History()
    first = history.launch()
    history.write(ev.InstanceCondemned(launch=first, cause=Cause.HANG))
    refused(history, started(first, history), "closed")


def test_a_replacement_names_the_attempt_that_it_replaces() -> None:
    history = training()
    refused(history, replace(intent(history), standby_for=None), "an attempt is current")
    refused(history, replace(intent(history), standby_for=999), "not current")
    history.ended(Cause.INTERRUPTED)
    refused(history, replace(intent(history), standby_for=3), "not current")


def test_a_drain_is_requested_once_and_of_the_current_attempt() -> None:
    history = training()
    history.write(ev.DrainRequested(attempt=history.attempt, reason="return to spot"))
    refused(history, ev.DrainRequested(attempt=history.attempt, reason="again"), "already requested")
    assert history.state.current.leaving


@pytest.mark.parametrize(
    ("by", "condemned", "cause"),
    [
        (EndedBy.CLOUD, None, Cause.INTERRUPTED),
        (EndedBy.FAULT, None, Cause.EXTERNAL),
        (EndedBy.TIME_TO_LIVE, None, Cause.EXTERNAL),
        (EndedBy.USER, Cause.HANG, Cause.HANG),
    ],
)
def test_the_end_of_its_instance_ends_an_attempt(by: EndedBy, condemned: Cause | None, cause: Cause) -> None:
    history = training()
    attempt, launch = history.attempt, history.state.current.launch
    if condemned is not None:
        history.write(ev.InstanceCondemned(launch=launch, cause=condemned))
    history.gone(launch, by, last_step=17)
    assert history.state.current is None
    end = history.state.attempts[attempt].end
    assert (end.cause, end.last_step, end.gave_up) == (cause, 17, False)
    refuses(history, lambda: history.gone(launch), "already gone")


def test_a_rebalance_recommendation_is_no_notice() -> None:
    history = training()
    history.notice("rebalance")
    assert history.state.current.rebalance
    assert not history.state.current.leaving
    history.notice()
    assert history.state.current.leaving


# -- checkpoints (20 to 24) ------------------------------------------------------------------------------------------


def test_a_commit_names_a_trainer_that_has_begun_and_a_prefix_of_its_own() -> None:
    history = training()
    commit = history.entries[history.commit()].event
    refused(history, commit, "already")
    refused(history, replace(commit, prefix="x", incarnation=1), "that trainer has not begun")


def test_each_trainer_has_a_number_of_its_own() -> None:
    history = training()
    resumed = ev.ResumedFrom(attempt=history.attempt, incarnation=0, commit=None, epoch=0, step=0)
    refused(history, resumed, "another trainer with that number")
    history.exited()
    exited = ev.TrainerExited(attempt=history.attempt, incarnation=0, cause=Cause.HANG, exit_code=1, step=1)
    refused(history, exited, "newest trainer")


def test_training_never_begins_from_zero_where_there_is_a_checkpoint() -> None:
    history = training()
    commit = history.commit()
    history.exited()
    from_zero = ev.ResumedFrom(attempt=history.attempt, incarnation=1, commit=None, epoch=0, step=0)
    refused(history, from_zero, "the trainer begins from scratch although there is a checkpoint")
    history.write(replace(from_zero, commit=commit, step=10))


def test_training_resumes_from_the_newest_unless_that_was_skipped_by_name() -> None:
    history = training()
    older, newer = history.commit(), history.commit()
    history.exited()
    event = ev.ResumedFrom(attempt=history.attempt, incarnation=1, commit=older, epoch=0, step=10)
    refused(history, event, "there is a newer checkpoint")
    history.write(replace(event, skipped=(newer,)))
    assert [commit.number for commit in history.state.restore_candidates()] == [older], "the newer one is cut off"
    history.exited()
    refused(history, replace(event, incarnation=2, commit=newer), "no training is allowed to resume")


def test_newest_is_by_entry_and_not_by_step() -> None:
    history = training()
    history.commit(step=100)
    newest = history.commit(step=50)
    assert history.state.latest_commit().number == newest


@pytest.mark.parametrize("spoilt", ["suspect", "retired"])
def test_a_spoilt_checkpoint_is_never_resumed_from(spoilt: str) -> None:
    history = training()
    good, bad = history.commit(), history.commit(suspect=spoilt == "suspect")
    if spoilt == "retired":
        history.write(ev.CheckpointRetired(attempt=history.attempt, commit=bad))
    assert history.state.latest_commit().number == good
    history.exited()
    event = ev.ResumedFrom(attempt=history.attempt, incarnation=1, commit=bad, epoch=0, step=10)
    refused(history, event, "no training is allowed to resume")


def test_only_the_current_attempt_retires_and_a_runner_after_the_end() -> None:
    history = training()
    commits = [history.commit(), history.commit()]
    refused(history, ev.CheckpointRetired(attempt=None, commit=commits[0]), "only after the run's end")
    refused(history, ev.CheckpointRetired(attempt=1, commit=commits[0]), "not the current one")
    history.write(ev.CheckpointRetired(attempt=history.attempt, commit=commits[0]))
    refused(history, ev.CheckpointRetired(attempt=history.attempt, commit=commits[0]), "already retired")
    history.completed(commits[1])
    history.write(ev.CheckpointRetired(attempt=None, commit=commits[1]))


def test_an_epoch_past_the_checkpoint_that_was_resumed_from_is_not_completed() -> None:
    history = training()
    history.commit()
    history.epoch(0)
    history.step = 20
    history.epoch(1)
    refused(history, ev.EpochCompleted(attempt=history.attempt, epoch=1, step=20, ended_at=history.now), "already")
    history.gone(history.state.current.launch, last_step=25)
    history.running()
    assert [epoch.event.epoch for epoch in history.state.epochs] == [0]
    assert history.state.attempts[history.attempt].trainers[-1].steps_redone == 15
    history.epoch(1)


# -- ending (25) -----------------------------------------------------------------------------------------------------


def test_a_completion_that_comes_before_the_stop_wins() -> None:
    history = training()
    history.write(ev.StopRequested(by="test"))
    history.completed(history.commit(final=True))
    assert history.state.terminal.outcome == "completed"
    refused(history, ev.RunStopped(reason="asked"), "the run has ended")
    refused(history, ev.ResumeRequested(by="test"), "neither stopped nor failed")


def test_a_run_is_completed_with_an_accepted_checkpoint() -> None:
    history = training()
    history.commit(suspect=True)
    event = ev.RunCompleted(attempt=history.attempt, final_commit=history.state.commits[-1].number, step=10)
    refused(history, event, "was not accepted")
    refused(history, replace(event, final_commit=999), "was not accepted")


@pytest.mark.parametrize("event", [ev.RunStopped(reason=""), ev.RunFailed(cause=Cause.QUOTA, detail="")])
def test_no_runner_ends_a_run_over_the_head_of_its_attempt(event: ev.AnyEvent) -> None:
    history = training()
    refused(history, event, "an attempt is current")
    history.ended()
    history.write(event)


def test_ended_run_stays_ended_until_a_resume_request() -> None:
    history = training()
    history.write(ev.StopRequested(by="test"))
    history.drained(history.commit(final=True))
    assert [attempt.end.cause for attempt in history.state.attempts.values()] == [Cause.STOPPED]
    history.after(10).write(ev.RunStopped(reason="asked"))
    for event in (ev.StopRequested(by="x"), ev.RunFailed(cause=Cause.QUOTA, detail=""), ev.RunStopped(reason="")):
        refused(history, event, "the run has ended")
    history.after(3600).write(ev.ResumeRequested(by="test"))
    assert history.state.terminal is None
    assert not history.state.stop_requested
    assert [pause.until - pause.since for pause in history.state.pauses] == [timedelta(hours=1)]
    history.running(ON_DEMAND)


def test_a_stop_can_be_taken_back() -> None:
    history = History()
    history.write(ev.StopRequested(by="test"))
    history.write(ev.ResumeRequested(by="test"))
    history.launch()
    refused(history, ev.ResumeRequested(by="test"), "neither stopped nor failed")


# -- any history -----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories(), st.data())
def test_a_ledger_read_in_parts_is_the_ledger_read_whole(entries: list[Entry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(entries)))
    assert fold(entries[cut:], fold(entries[:cut]) if cut else None) == fold(entries)


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories(), st.data())
def test_entries_in_any_order_never_break_the_rules(entries: list[Entry], data: st.DataObject) -> None:
    """What writers of all kinds append late, twice or out of turn is accepted or void, and the rules hold."""
    deck = data.draw(st.lists(st.sampled_from(entries), max_size=60))
    state = begin(entries[0])
    for number, entry in enumerate(deck, 1):
        before, state = state, apply(state, replace(entry, number=number, nonce=f"n{number}"))
        assert state.next_number == number + 1
        assert sum(launch.pending for launch in state.launches.values()) <= 1
        assert sum(attempt.end is None for attempt in state.attempts.values()) <= 1
        assert all(not (launch.closed and launch.attempt) for launch in state.launches.values())
        gone = {n: launch for n, launch in before.launches.items() if launch.gone is not None}
        assert gone == {n: state.launches[n] for n in gone}
        if before.terminal is not None and state.terminal != before.terminal:
            assert isinstance(entry.event, ev.ResumeRequested)
            assert before.terminal.outcome != "completed"
