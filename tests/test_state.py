"""Which entries are void, rule by rule of the protocol; a void entry is kept, named, and without effect."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from spotrun import events as ev
from spotrun.events import AnyEvent, Cause, Entry
from spotrun.state import apply, fold, refusal
from tests.histories import ON_DEMAND, History, histories


def refused(history: History, event: AnyEvent) -> str:
    """Why `event` would be void now; it must be, and must then have no effect but to take its number."""
    entry = history.entry(event)
    reason = refusal(history.state, entry)
    assert reason is not None, f"{ev.kind(event)} was accepted"
    after = apply(history.state, entry)
    assert [void.reason for void in after.voids][-1] == reason
    assert replace(after, next_number=0, entry_times=(), voids=()) == replace(
        history.state, next_number=0, entry_times=(), voids=()
    )
    return reason


def started(launch: int) -> ev.AttemptStarted:
    return ev.AttemptStarted(launch=launch, instance_id=f"i-{launch}", booted_at=History().now)


def trained() -> History:
    history = History()
    history.running()
    history.step = 5
    history.commit()
    return history


def test_only_one_launch_waits_at_a_time() -> None:
    history = History()
    history.launch()
    assert "pending" in refused(history, replace(history.entries[-1].event))


def test_no_launch_goes_beyond_the_price_cap_or_the_budget() -> None:
    offer = trained().state.launches[1].intent
    assert "price cap" in refused(History(price_cap_usd_per_hour=Decimal("0.5")), offer)
    assert "budget" in refused(History(budget_usd=Decimal(10)), offer)


def test_a_closed_launch_starts_no_attempt_and_a_started_one_is_not_closed() -> None:
    history = History()
    closed = history.launch()
    history.close(closed)
    assert "closed" in refused(history, started(closed))
    launch = history.launch()
    history.start(launch)
    assert "started" in refused(history, ev.LaunchClosed(launch=launch, cause=Cause.CAPACITY))
    assert "started" in refused(history, started(launch))


def test_a_condemned_launch_starts_no_attempt() -> None:
    history = History()
    launch = history.launch()
    history.write(ev.InstanceCondemned(launch=launch, cause=Cause.HANG))
    assert "closed" in refused(history, started(launch))


def test_an_older_launch_cannot_take_over_from_a_newer_one() -> None:
    history = History()
    old = history.launch()
    history.record(old)
    history.gone(old)
    history.running()
    assert refused(history, started(old))


@pytest.mark.parametrize(
    "event_of",
    [
        lambda attempt: ev.EpochCompleted(attempt=attempt, epoch=3, step=9, ended_at=History().now),
        lambda attempt: ev.AttemptDrained(attempt=attempt, final_commit=None, stopped_at=History().now, reason="x"),
        lambda attempt: ev.AttemptEnded(attempt=attempt, cause=Cause.HANG, last_step=1),
        lambda attempt: ev.RunCompleted(attempt=attempt, final_commit=None, step=9),
        lambda attempt: ev.NoticeSeen(attempt=attempt, kind="termination", deadline_at=None),
        lambda attempt: ev.CheckpointFailed(attempt=attempt, step=9, detail="x"),
        lambda attempt: ev.DrainRequested(attempt=attempt, reason="x"),
    ],
)
def test_a_fenced_attempt_says_nothing_any_more(event_of: Callable[[int], AnyEvent]) -> None:
    history = trained()
    zombie = history.attempt
    history.start(history.launch())
    assert "not the current one" in refused(history, event_of(zombie))


def test_a_runner_ends_the_run_only_while_nothing_trains() -> None:
    history = trained()
    assert "current" in refused(history, ev.RunStopped(reason="x"))
    assert "current" in refused(history, ev.RunFailed(cause=Cause.HANG, detail="x"))
    history.drained(None)
    history.write(ev.RunStopped(reason="x"))


def test_training_never_begins_at_zero_or_at_an_older_checkpoint_in_silence() -> None:
    history = trained()
    older = history.state.commits[0].number
    history.commit()
    newer = history.state.commits[1].number
    history.drained(newer)
    history.start(history.launch(ON_DEMAND))
    fresh = ev.ResumedFrom(attempt=history.attempt, incarnation=0, commit=None, epoch=0, step=0)
    assert "from zero" in refused(history, fresh)
    assert "newer checkpoint" in refused(history, replace(fresh, commit=older))
    history.write(replace(fresh, commit=older, skipped=(newer,)))
    assert [commit.cut_off for commit in history.state.commits] == [False, True]


def test_neither_a_suspect_nor_a_retired_checkpoint_is_resumed_from() -> None:
    history = trained()
    good = history.state.commits[0].number
    suspect = history.commit(suspect=True)
    history.write(ev.CheckpointRetired(attempt=history.attempt, commit=good))
    history.drained(None)
    history.start(history.launch())
    for commit in (good, suspect):
        resume = ev.ResumedFrom(attempt=history.attempt, incarnation=0, commit=commit, epoch=0, step=0)
        assert "may not be resumed from" in refused(history, resume)


def test_after_the_end_nothing_starts_and_a_completion_that_came_first_wins() -> None:
    history = trained()
    history.write(ev.StopRequested(by="me"))
    history.completed(history.state.commits[0].number)
    assert history.state.terminal is not None
    assert history.state.terminal.outcome == "completed"
    assert refused(history, ev.StopRequested(by="me"))
    assert refused(history, ev.ResumeRequested(by="me"))
    assert refused(history, replace(history.state.launches[1].intent))


def test_a_stop_is_not_an_end_and_a_resume_opens_the_run_again() -> None:
    history = History()
    history.write(ev.StopRequested(by="me"))
    assert history.state.terminal is None
    assert "stop was requested" in refused(history, trained().state.launches[1].intent)
    history.write(ev.RunStopped(reason="stop requested"))
    history.after(60).write(ev.ResumeRequested(by="me"))
    history.launch()


def test_a_runner_retires_checkpoints_only_after_the_end() -> None:
    history = trained()
    retired = ev.CheckpointRetired(attempt=None, commit=history.state.commits[0].number)
    assert "ended" in refused(history, retired)


def test_the_creation_of_another_run_is_void() -> None:
    history = History()
    assert "entry 0" in refused(history, history.entries[0].event)


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_reading_the_ledger_in_two_parts_gives_the_same_state(entries: list[Entry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(entries)))
    assert fold(entries[cut:], start=fold(entries[:cut])) == fold(entries)
