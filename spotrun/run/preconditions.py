"""The preconditions of each event. An entry that does not meet them is void."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from spotrun.run import events as ev
from spotrun.run.billing import switched_off_at
from spotrun.run.events import Entry
from spotrun.run.gang_rules import GANG_CHECKS, check_is_member, check_ready, check_released
from spotrun.run.member import Member
from spotrun.run.refusal import Refusal, require
from spotrun.run.state import Attempt, Launch, RunState, reservation_usd

LIFE_MAX_S = 31 * 86_400
"""
Maximum seconds of a time-to-live. The minimum is above 0: a launch with a negative time-to-live would reserve a
negative amount of the budget.
"""


def check_run(state: RunState, entry: Entry) -> None:
    require(not isinstance(entry.event, ev.RunCreated), "only entry 0 may create a run")
    require(entry.run == state.created.uid, "the entry belongs to another run")
    if not state.of_gangs:
        require(not ev.speaks_of_gangs(entry.event), "the run is on one instance")


def check(state: RunState, event: ev.Event) -> None:
    """
    Check the preconditions of an event, including the additional ones for a gang.

    Raises:
        Refusal: a precondition is not met; the message names it.
    """
    CHECKS[type(event)](state, event)
    if state.of_gangs and type(event) in GANG_CHECKS:
        GANG_CHECKS[type(event)](state, event)


def check_first(entry: Entry) -> ev.RunCreated:
    """
    Return the event of entry 0.

    Raises:
        Refusal: entry 0 does not create a run that this version can read.
    """
    if not isinstance(entry.event, ev.RunCreated):
        raise Refusal("entry 0 creates no run")
    require(entry.run == entry.event.uid, "the entry belongs to a different run from the one that it creates")
    version = entry.event.ledger_version
    require(version in ev.READABLE_VERSIONS, f"ledger version {version} cannot be read by this spotrun")
    return entry.event


def _check_open(state: RunState, _: Any = None) -> None:
    require(state.terminal is None, "the run has ended")


def _check_resume_requested(state: RunState, _: ev.ResumeRequested) -> None:
    ended = state.terminal is not None and state.terminal.outcome != "completed"
    require(ended or (state.terminal is None and state.stop_requested), "the run is neither stopped nor failed")


def _check_prune_requested(state: RunState, event: ev.PruneRequested) -> None:
    _check_open(state)
    require(event.keep >= 1, "the newest checkpoint is always kept")


def _check_launch_intended(state: RunState, event: ev.LaunchIntended) -> None:
    _check_open(state)
    require(not state.stop_requested, "a stop was requested")
    require(state.pending_launch is None, "another launch is pending")
    require(0 < event.time_to_live_s <= LIFE_MAX_S, "the time-to-live is out of bounds")
    created = state.created
    cap = created.price_cap_usd_per_hour
    require(cap is None or event.price_ceiling_usd_per_hour <= cap, "more expensive than the run's price cap")
    if event.standby_for is not None:
        require(state.current_attempt == event.standby_for, "the attempt to replace is not current")
    elif not event.for_gang:
        require(state.current is None, "an attempt is current")
    if created.budget_usd is not None:
        planned = state.reserved_usd() + reservation_usd(event, created.billing)
        require(planned <= created.budget_usd, "the reservation exceeds the rest of the budget")


def _known_launch(state: RunState, number: int) -> Launch:
    require(number in state.launches, f"there is no launch {number}")
    return state.launches[number]


def _known_member(state: RunState, event: ev.OfMember) -> Member:
    check_is_member(state, event)
    return state.member(ev.name_of(event))


def _check_launch_recorded(state: RunState, event: ev.LaunchRecorded) -> None:
    member = _known_member(state, event)
    require(member.recorded is None and member.gone is None, "already recorded")


def _check_guard_armed(state: RunState, event: ev.GuardArmed) -> None:
    member = _known_member(state, event)
    require(member.recorded is not None and member.recorded.unguarded is not None, "the instance has its guard already")
    require(member.gone is None, "already gone")


def _check_stopped(state: RunState, event: ev.InstanceStopped) -> None:
    member = _known_member(state, event)
    require(member.recorded is not None and bool(member.prices), "the instance has no price that could end")
    require(member.gone is None and switched_off_at(member.prices) is None, "already stopped or gone")


def _check_launch_closed(state: RunState, event: ev.LaunchClosed) -> None:
    launch = _known_launch(state, event.launch)
    require(launch.attempt is None, "the launch has started an attempt")
    require(launch.open, "already closed")


def _check_drain_requested(state: RunState, event: ev.DrainRequested) -> None:
    current = _check_current(state, event.attempt)
    require(current.drain is None, "already requested")


def _check_condemned(state: RunState, event: ev.InstanceCondemned) -> None:
    member = _known_member(state, event)
    require(member.condemned is None and member.gone is None, "already condemned or gone")


def _check_gone(state: RunState, event: ev.InstanceGone) -> None:
    require(_known_member(state, event).gone is None, "already gone")


def _check_end_corrected(state: RunState, event: ev.EndCorrected) -> None:
    member, index = _known_member(state, event), ev.name_of(event).member
    launch = state.launches[event.launch]
    require(member.gone is not None and bool(member.gone.bounded_by), "the instance has no end that was estimated")
    began, latest = member.billed_from, launch.latest_end_of(index)
    lived = began is not None and latest is not None and began <= event.ended_at <= latest
    require(lived, "the end is not between the start of the bill and the end of the time-to-live")
    assert member.gone is not None
    require(event.ended_at != member.gone.ended_at, "the instance already has this end")
    launch.with_end(event.ended_at, index).reserved_usd(state.created.billing)  # may raise ArithmeticError


def _check_ending_by_runner(state: RunState, _: Any) -> None:
    _check_open(state)
    require(state.current_attempt is None, "an attempt is current")


def _check_deadline_out_of_reach(state: RunState, _: ev.DeadlineOutOfReach) -> None:
    _check_open(state)
    require(state.deadline_lost is None, "written already")


def _check_budget_nearly_spent(state: RunState, _: ev.BudgetNearlySpent) -> None:
    _check_open(state)
    require(state.created.budget_usd is not None, "the run has no budget")
    require(state.budget_warning is None, "written already")


def _check_attempt_started(state: RunState, event: ev.AttemptStarted) -> None:
    _check_open(state)
    launch = _known_launch(state, event.launch)
    if state.of_gangs:  # GANG_CHECKS check the members of a gang one by one
        return
    require(launch.attempt is None, "the launch has started already")
    require(launch.open and launch.condemned is None, "the launch is closed")
    pending = state.pending_launch
    require(pending is not None and pending.number == event.launch, "a newer launch is waiting to start")
    newest = next(reversed(state.attempts.values()), None)
    require(newest is None or event.launch > newest.launch, "a newer launch has started")


def _check_ready(state: RunState, event: ev.MemberReady) -> None:
    _check_open(state)
    check_ready(state, event)


def _check_current(state: RunState, attempt: int) -> Attempt:
    _check_open(state)
    require(state.current_attempt == attempt, f"attempt {attempt} is not the current one")
    return state.attempts[attempt]


def _check_may_commit(state: RunState, attempt: int) -> Attempt:
    _check_open(state)
    require(state.may_commit(attempt), f"attempt {attempt} is not the current one")
    return state.attempts[attempt]


def _check_of_current(state: RunState, event: Any) -> None:
    _check_current(state, event.attempt)


def _check_resumed_from(state: RunState, event: ev.ResumedFrom) -> None:
    attempt = _check_current(state, event.attempt)
    require(event.incarnation == len(attempt.trainers), "another trainer with that number has begun")
    if event.commit is None:
        require(state.latest_commit() is None, "the trainer begins from scratch although there is a checkpoint")
        return
    commit = state.commit(event.commit)
    require(commit is not None and commit.usable, "no training is allowed to resume from that commit")
    skipped, chosen = set(event.skipped), event.commit
    newer = takewhile(lambda other: other.number > chosen, state.usable_commits())
    require(all(other.number in skipped for other in newer), "there is a newer checkpoint")


def _check_of_trainer(state: RunState, event: Any) -> None:
    attempt = _check_current(state, event.attempt)
    require(bool(attempt.trainers), "no trainer has begun")
    newest = attempt.trainers[-1]
    require(newest.incarnation == event.incarnation and newest.exited is None, "not the attempt's newest trainer")


def _check_training_started(state: RunState, event: ev.TrainingStarted) -> None:
    _check_of_trainer(state, event)
    trainer = state.attempts[event.attempt].trainers[-1]
    require(trainer.started_at is None, "already started")
    require(event.began_at is None or trainer.began_at is None, "the trainer's start is already known")


def _check_committed(state: RunState, event: ev.CheckpointCommitted) -> None:
    attempt = _check_may_commit(state, event.attempt)
    require(event.incarnation < len(attempt.trainers), "that trainer has not begun")
    again = bool(state.commits) and state.commits[-1].event.prefix == event.prefix
    require(not again, "this commit is already the newest")
    kept = all(_is_kept(state, prefix) for prefix in event.borrows)
    require(kept, "the checkpoint borrows from one that may be gone")


def _is_kept(state: RunState, prefix: str) -> bool:
    """
    Return True if the objects whose names begin with `prefix` are certain to stay in the store: the commit to which
    they belong is not retired, or another commit borrows from it.
    """
    if prefix in state.borrowers:
        return True
    return any(commit.event.prefix == prefix and commit.retired_at is None for commit in reversed(state.commits))


def _check_final_commit(state: RunState, event: ev.AttemptDrained | ev.RunCompleted) -> None:
    _check_current(state, event.attempt)
    if event.final_commit is not None:
        commit = state.commit(event.final_commit)
        require(commit is not None and commit.usable, "the final commit was not accepted")


def _check_retired(state: RunState, event: ev.CheckpointRetired) -> None:
    if event.attempt is None:
        require(state.terminal is not None, "a runner may retire a commit only after the run's end")
    else:
        _check_current(state, event.attempt)
    commit = state.commit(event.commit)
    require(commit is not None and commit.retired_at is None, "the commit does not exist, or is already retired")
    assert commit is not None
    borrowers = state.borrowers.get(commit.event.prefix)
    require(not borrowers or borrowers[-1] <= commit.number, "another checkpoint borrows from it")


def _check_outputs_stored(state: RunState, event: ev.OutputsStored) -> None:
    _check_current(state, event.attempt)
    require(event.commit is None or state.commit(event.commit) is not None, "there is no such checkpoint")
    newest = state.newest_outputs()
    require(newest is None or newest.event.key != event.key, "these files are already the newest")


def _check_epoch_completed(state: RunState, event: ev.EpochCompleted) -> None:
    _check_may_commit(state, event.attempt)
    last = state.epochs[-1].event.epoch if state.epochs else -1
    require(event.epoch > last, "that epoch is already completed")


def _check_not_carried(state: RunState, event: ev.StateNotCarried) -> None:
    _check_may_commit(state, event.attempt)
    known = {one.place for one in state.not_carried}
    require(bool(event.places), "it names nothing")
    require(known.isdisjoint(one.place for one in event.places), "this state is already reported")


CHECKS: dict[type, Callable[[RunState, Any], object]] = {
    ev.StopRequested: _check_open,
    ev.ResumeRequested: _check_resume_requested,
    ev.PruneRequested: _check_prune_requested,
    ev.EndCorrected: _check_end_corrected,
    ev.LaunchIntended: _check_launch_intended,
    ev.LaunchRecorded: _check_launch_recorded,
    ev.GuardArmed: _check_guard_armed,
    ev.InstanceStopped: _check_stopped,
    ev.LaunchClosed: _check_launch_closed,
    ev.DrainRequested: _check_drain_requested,
    ev.InstanceCondemned: _check_condemned,
    ev.MemberReleased: check_released,
    ev.InstanceGone: _check_gone,
    ev.DeadlineOutOfReach: _check_deadline_out_of_reach,
    ev.BudgetNearlySpent: _check_budget_nearly_spent,
    ev.RunStopped: _check_ending_by_runner,
    ev.RunFailed: _check_ending_by_runner,
    ev.AttemptStarted: _check_attempt_started,
    ev.MemberReady: _check_ready,
    ev.ResumedFrom: _check_resumed_from,
    ev.TrainingStarted: _check_training_started,
    ev.NoticeSeen: _check_of_current,
    ev.NoticesUnseen: _check_of_current,
    ev.CheckpointCommitted: _check_committed,
    ev.CheckpointFailed: _check_of_current,
    ev.CheckpointRetired: _check_retired,
    ev.StateNotCarried: _check_not_carried,
    ev.OutputsStored: _check_outputs_stored,
    ev.EpochCompleted: _check_epoch_completed,
    ev.TrainerExited: _check_of_trainer,
    ev.AttemptDrained: _check_final_commit,
    ev.AttemptEnded: _check_of_current,
    ev.RunCompleted: _check_final_commit,
}
