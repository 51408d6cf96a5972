"""Defines what each accepted event changes in the state of a run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import takewhile
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace
from pyrsistent import PVector, pvector

from spotrun.instance import EndedBy
from spotrun.run import events as ev
from spotrun.run.billing import until_switched_off
from spotrun.run.events import Cause, Entry
from spotrun.run.gang import MemberName
from spotrun.run.member import Member
from spotrun.run.state import (
    WORTH_ANOTHER_TRY,
    Attempt,
    AttemptEnd,
    Commit,
    Epoch,
    Launch,
    NotCarried,
    Outputs,
    Pause,
    Prune,
    RunState,
    Terminal,
    Trainer,
)
from spotrun.run.versions import position


def _with_launch(state: RunState, number: int, **changes: Any) -> RunState:
    return replace(state, launches=state.launches.changed(replace(state.launches[number], **changes)))


def _with_member(state: RunState, name: MemberName, **changes: Any) -> RunState:
    """
    Apply `changes` to one instance. A launch is no longer pending once each of its members is ready, released or gone.
    """
    launch = state.launches[name.launch].with_member(name.member, **changes)
    state = replace(state, launches=state.launches.changed(launch))
    return state if launch.pending else _no_longer_pending(state, launch.number)


def _with_attempt(state: RunState, number: int, **changes: Any) -> RunState:
    return replace(state, attempts=state.attempts.changed(replace(state.attempts[number], **changes)))


def _end_attempt(state: RunState, number: int, end: AttemptEnd) -> RunState:
    """Record that the current entry has ended the attempt."""
    return replace(_with_attempt(state, number, end=end), current_attempt=None, last_end=state.next_number - 1)


def _end_run(state: RunState, outcome: str, entry: Entry, cause: Cause, detail: str = "", **more: Any) -> RunState:
    end = Terminal(outcome=outcome, number=entry.number, at=entry.at, cause=cause, detail=detail, **more)
    return replace(state, terminal=end)


def _stop_requested(state: RunState, entry: Entry, event: ev.StopRequested) -> RunState:
    return replace(state, stop_requested_at=entry.at)


def _resume_requested(state: RunState, entry: Entry, event: ev.ResumeRequested) -> RunState:
    opened = replace(state, stop_requested_at=None, restarts_used=0, opened_at=entry.at, terminal=None)
    if state.terminal is None:
        return opened
    pause = Pause(since=state.terminal.at, until=max(state.terminal.at, entry.at))
    return replace(opened, pauses=state.pauses.append(pause))


def _prune_requested(state: RunState, entry: Entry, event: ev.PruneRequested) -> RunState:
    return replace(state, prune=Prune(number=entry.number, keep=event.keep))


def _launch_intended(state: RunState, entry: Entry, event: ev.LaunchIntended) -> RunState:
    members = (Member(),) * event.instances
    launch = Launch(number=entry.number, intent=event, intended_at=entry.at, members=members)
    unsettled = (*state.unsettled, entry.number)
    return replace(state, launches=state.launches.added(launch), pending=entry.number, unsettled=unsettled)


def _launch_recorded(state: RunState, entry: Entry, event: ev.LaunchRecorded) -> RunState:
    state = _with_member(state, ev.name_of(event), recorded=event)
    known = event.launch in state.unsettled
    return state if known else replace(state, unsettled=(*state.unsettled, event.launch))


def _guard_armed(state: RunState, entry: Entry, event: ev.GuardArmed) -> RunState:
    name = ev.name_of(event)
    recorded = state.member(name).recorded
    assert recorded is not None
    return _with_member(state, name, recorded=replace(recorded, unguarded=None))


def _stopped(state: RunState, entry: Entry, event: ev.InstanceStopped) -> RunState:
    name = ev.name_of(event)
    recorded = state.member(name).recorded
    assert recorded is not None
    prices = until_switched_off(recorded.prices, event.stopped_at)
    return _with_member(state, name, recorded=replace(recorded, prices=prices))


def _launch_closed(state: RunState, entry: Entry, event: ev.LaunchClosed) -> RunState:
    closed = _with_launch(state, event.launch, closed=event, closed_at=entry.at)
    state = _no_longer_pending(closed, event.launch)
    return _settle(state, event.launch) if state.launches[event.launch].settled else state


def _no_longer_pending(state: RunState, launch: int) -> RunState:
    return replace(state, pending=None) if state.pending == launch else state


def _settle(state: RunState, number: int) -> RunState:
    """
    Add the launch's final cost to `settled_usd`. If the cost cannot be computed, the launch remains in `unsettled`.
    """
    others = tuple(other for other in state.unsettled if other != number)
    try:
        settled_usd = state.settled_usd + state.launches[number].reserved_usd(state.created.billing)
    except ArithmeticError:
        return replace(state, unsettled=(*others, number))
    return replace(state, unsettled=others, settled_usd=settled_usd)


def _drain_requested(state: RunState, entry: Entry, event: ev.DrainRequested) -> RunState:
    return _with_attempt(state, event.attempt, drain=event)


def _condemned(state: RunState, entry: Entry, event: ev.InstanceCondemned) -> RunState:
    return _with_member(state, ev.name_of(event), condemned=event, condemned_at=entry.at)


def _released(state: RunState, entry: Entry, event: ev.MemberReleased) -> RunState:
    return _with_member(state, ev.name_of(event), released=event)


def _gone(state: RunState, entry: Entry, event: ev.InstanceGone) -> RunState:
    name = ev.name_of(event)
    state = _with_member(state, name, gone=event, missed_at=entry.at if event.bounded_by else None)
    member = state.member(name)
    if state.launches[event.launch].settled:
        state = _settle(state, event.launch)
    current = state.current
    if current is None or name not in current.names:
        return state
    end = AttemptEnd(
        cause=_cause_of_loss(member, event),
        stopped_at=member.still_from or event.ended_at,
        known_at=entry.at,
        last_step=event.last_step_seen,
        detail=event.evidence,
    )
    return _end_attempt(state, current.number, end)


def _end_corrected(state: RunState, entry: Entry, event: ev.EndCorrected) -> RunState:
    """
    Correct the recorded end of an instance, and the cost of its launch. The end of the attempt that ran on the instance
    does not change.
    """
    before, rule = state.launches[event.launch], state.created.billing
    after = before.with_end(event.ended_at, ev.name_of(event).member)
    state = replace(state, launches=state.launches.changed(after))
    if event.launch in state.unsettled:
        return _settle(state, event.launch)
    return replace(state, settled_usd=state.settled_usd - before.reserved_usd(rule) + after.reserved_usd(rule))


def _cause_of_loss(member: Member, event: ev.InstanceGone) -> Cause:
    """
    Return the reason why an instance was lost. If a runner had condemned the instance, the reason is in the entry that
    condemned it. If not, the cloud's report decides: the instance was interrupted if the cloud ended it; otherwise a
    person or another program ended it (failures.md P27, R15).
    """
    if member.condemned is not None:
        return member.condemned.cause
    return Cause.INTERRUPTED if event.ended_by is EndedBy.CLOUD else Cause.EXTERNAL


def _deadline_out_of_reach(state: RunState, entry: Entry, event: ev.DeadlineOutOfReach) -> RunState:
    return replace(state, deadline_lost=event)


def _budget_nearly_spent(state: RunState, entry: Entry, event: ev.BudgetNearlySpent) -> RunState:
    return replace(state, budget_warning=event)


def _run_stopped(state: RunState, entry: Entry, event: ev.RunStopped) -> RunState:
    return _end_run(state, "stopped", entry, Cause.STOPPED, event.reason)


def _run_failed(state: RunState, entry: Entry, event: ev.RunFailed) -> RunState:
    return _end_run(state, "failed", entry, event.cause, event.detail)


def _vouch(state: RunState, setup: ev.SetUp | None) -> RunState:
    """
    Keep the digest of a stored set-up. After an attempt has started, entries may come from the training, so their
    digests are ignored (protocol 31).
    """
    if state.attempts or setup is None or setup.pack is UNSET:
        return state
    return replace(state, packs_before_training=(*state.packs_before_training, setup.pack))


def _attempt_started(state: RunState, entry: Entry, event: ev.AttemptStarted) -> RunState:
    state = _vouch(state, event.setup)
    predecessor = state.current
    if predecessor is not None:
        condemned = (member.condemned for member in state.members_of(predecessor))
        cause = next((each.cause for each in condemned if each is not None), Cause.REPLACED)
        end = AttemptEnd(cause=cause, stopped_at=entry.at, known_at=entry.at, last_step=None, detail="fenced")
        state = _end_attempt(state, predecessor.number, end)
    attempt = Attempt(
        number=entry.number,
        launch=event.launch,
        instance_id=event.instance_id,
        booted_at=_booted_at(state, event),
        started_at=entry.at,
        setup=event.setup,
        gang=None if event.gang is UNSET else event.gang,
    )
    for number in {name.launch for name in attempt.names}:
        state = _no_longer_pending(_with_launch(state, number, attempt=entry.number), number)
    return replace(state, attempts=state.attempts.added(attempt), current_attempt=entry.number)


def _booted_at(state: RunState, event: ev.AttemptStarted) -> datetime:
    """
    Return the time at which the attempt's instance began to run spotrun's code. For a gang, return the time of the
    member that booted last.
    """
    members = [] if event.gang is UNSET else map(state.member, event.gang.names)
    return max((member.ready.booted_at for member in members if member.ready is not None), default=event.booted_at)


def _ready(state: RunState, entry: Entry, event: ev.MemberReady) -> RunState:
    name, state = ev.name_of(event), _vouch(state, event.setup)
    since = state.member(name).ready_since or entry.at
    state = _with_member(state, name, ready=event, ready_at=entry.at, ready_since=since)
    first = event.setup is not None and state.member(name).setup is None
    return _with_member(state, name, setup=event.setup, set_up_at=entry.at) if first else state


def _resumed_from(state: RunState, entry: Entry, event: ev.ResumedFrom) -> RunState:
    chosen = None if event.commit is None else state.commit(event.commit)
    trainer = Trainer(
        incarnation=event.incarnation,
        resumed_at=entry.at,
        commit=event.commit,
        step=event.step,
        in_place=event.in_place,
        steps_redone=max(0, _last_step_reached(state) - event.step),
        meet=None if event.meet is UNSET else event.meet,
    )
    trainers = (*state.attempts[event.attempt].trainers, trainer)
    state = _with_attempt(state, event.attempt, trainers=trainers, refused_at=None)
    return replace(
        state,
        commits=_cut_off(state.commits, -1 if event.commit is None else event.commit),
        epochs=_epochs_until(state.epochs, event.step),
        restores=state.restores.append((entry.at, 0 if chosen is None else chosen.event.objects)),
    )


def _cut_off(commits: PVector[Commit], chosen: int) -> PVector[Commit]:
    """
    Mark all commits after commit `chosen` as cut off. They no longer count, because a trainer has resumed from `chosen`
    and repeats their steps.
    """
    for at in range(len(commits) - 1, -1, -1):
        commit = commits[at]
        if commit.number <= chosen:
            break
        if not commit.cut_off:
            commits = commits.set(at, replace(commit, cut_off=True))
    return commits


def _epochs_until(epochs: PVector[Epoch], step: int) -> PVector[Epoch]:
    """
    Return the epochs whose last step is at most `step`.

    To save time, the search begins with the newest epoch, and stops at an epoch whose `step_reached` is at most `step`.
    That is the largest last step of this epoch and all earlier ones, so none of them has to be checked.
    """
    undecided = list(takewhile(lambda epoch: epoch.step_reached > step, reversed(epochs)))
    kept = epochs[: len(epochs) - len(undecided)]
    for epoch in reversed(undecided):
        if epoch.event.step <= step:
            kept = _with_epoch(kept, epoch)
    return kept


def _with_epoch(epochs: PVector[Epoch], epoch: Epoch) -> PVector[Epoch]:
    before = epochs[-1].step_reached if epochs else epoch.event.step
    return epochs.append(replace(epoch, step_reached=max(before, epoch.event.step)))


def _last_step_reached(state: RunState) -> int:
    """Return the last step that the previous trainer is known to have completed; 0 if there was no trainer."""
    last = next((attempt for attempt in reversed(state.attempts.values()) if attempt.trainers), None)
    if last is None:
        return 0
    trainer = last.trainers[-1]
    newest = _newest_not_cut_off(state.commits)
    reached = [] if newest is None else [newest.step_reached]
    reached.append(trainer.step)
    if trainer.exited is not None:
        reached.append(trainer.exited.step)
    if last.end is not None and last.end.last_step is not None:
        reached.append(last.end.last_step)
    return max(reached)


def _with_newest_trainer(state: RunState, attempt: int, **changes: Any) -> RunState:
    trainers = state.attempts[attempt].trainers
    return _with_attempt(state, attempt, trainers=(*trainers[:-1], replace(trainers[-1], **changes)))


def _training_started(state: RunState, entry: Entry, event: ev.TrainingStarted) -> RunState:
    if event.began_at is not None:
        unprotected = event.unprotected
        return _with_newest_trainer(state, event.attempt, began_at=event.began_at, unprotected=unprotected)
    return _with_newest_trainer(state, event.attempt, started_at=entry.at, unprotected=False)


def _notice_seen(state: RunState, entry: Entry, event: ev.NoticeSeen) -> RunState:
    if event.kind == "rebalance":
        first_at = state.attempts[event.attempt].rebalance_at or entry.at
        return _with_attempt(state, event.attempt, rebalance_at=first_at)
    if _comes_later(event, state.attempts[event.attempt].notice):
        return state
    return _with_attempt(state, event.attempt, notice=event, notice_at=entry.at)


def _comes_later(event: ev.NoticeSeen, known: ev.NoticeSeen | None) -> bool:
    """
    Return True if the gang ignores the notice `event`, because another member already has a notice (`known`) with the
    same or an earlier deadline. The gang has to hand over by the earlier deadline anyway.
    """
    if known is None or known.member == event.member or known.deadline_at is None:
        return False
    return event.deadline_at is None or event.deadline_at >= known.deadline_at


def _notices_unseen(state: RunState, entry: Entry, event: ev.NoticesUnseen) -> RunState:
    return _with_attempt(state, event.attempt, unseen=event)


def _committed(state: RunState, entry: Entry, event: ev.CheckpointCommitted) -> RunState:
    if state.attempts[event.attempt].saves_failed_in_a_row:
        state = _with_attempt(state, event.attempt, saves_failed_in_a_row=0, refused_at=None)
    newest, borrowers = _newest_not_cut_off(state.commits), state.borrowers
    reached = event.step if newest is None else max(event.step, newest.step_reached)
    for prefix in dict.fromkeys(event.borrows):
        borrowers = borrowers.set(prefix, borrowers.get(prefix, pvector()).append(entry.number))
    commit = Commit(number=entry.number, at=entry.at, event=event, step_reached=reached)
    return replace(state, commits=state.commits.append(commit), borrowers=borrowers)


def _newest_not_cut_off(commits: PVector[Commit]) -> Commit | None:
    return next((commit for commit in reversed(commits) if not commit.cut_off), None)


def _save_failed(state: RunState, entry: Entry, event: ev.CheckpointFailed) -> RunState:
    attempt = state.attempts[event.attempt]
    return _with_attempt(
        state,
        event.attempt,
        saves_failed_in_a_row=attempt.saves_failed_in_a_row + 1,
        refused_bytes=event.size_bytes,
        refused_at=(attempt.refused_at or entry.at) if event.size_bytes else None,
    )


def _retired(state: RunState, entry: Entry, event: ev.CheckpointRetired) -> RunState:
    at = position(state.commits, event.commit)
    assert at is not None
    retired, borrowers = replace(state.commits[at], retired_at=entry.at), state.borrowers
    state = replace(state, commits=state.commits.set(at, retired))
    for prefix in dict.fromkeys(retired.event.borrows):
        numbers = borrowers[prefix]
        while numbers and state.is_retired(numbers[-1]):
            numbers = numbers[:-1]
        borrowers = borrowers.set(prefix, numbers) if numbers else borrowers.remove(prefix)
    return replace(state, borrowers=borrowers)


def _not_carried(state: RunState, entry: Entry, event: ev.StateNotCarried) -> RunState:
    named = (NotCarried(entry.number, one.place, one.what, event.step) for one in event.places)
    return replace(state, not_carried=(*state.not_carried, *named))


def _outputs_stored(state: RunState, entry: Entry, event: ev.OutputsStored) -> RunState:
    return replace(state, outputs=state.outputs.append(Outputs(number=entry.number, at=entry.at, event=event)))


def _epoch_completed(state: RunState, entry: Entry, event: ev.EpochCompleted) -> RunState:
    return replace(state, epochs=_with_epoch(state.epochs, Epoch(number=entry.number, at=entry.at, event=event)))


def _trainer_exited(state: RunState, entry: Entry, event: ev.TrainerExited) -> RunState:
    state = _with_newest_trainer(state, event.attempt, exited=event, exited_at=entry.at)
    return replace(state, restarts_used=state.restarts_used + 1)


def _attempt_drained(state: RunState, entry: Entry, event: ev.AttemptDrained) -> RunState:
    attempt = state.attempts[event.attempt]
    cause = (
        Cause.INTERRUPTED if attempt.notice is not None else Cause.STOPPED if state.stop_requested else Cause.REPLACED
    )
    final = None if event.final_commit is None else state.commit(event.final_commit)
    end = AttemptEnd(
        cause=cause,
        stopped_at=event.stopped_at,
        known_at=entry.at,
        last_step=None if final is None else final.event.step,
        detail=event.reason,
    )
    return _end_attempt(state, event.attempt, end)


def _attempt_ended(state: RunState, entry: Entry, event: ev.AttemptEnded) -> RunState:
    missing = () if event.missing is UNSET else event.missing
    end = AttemptEnd(
        cause=event.cause,
        stopped_at=entry.at,
        known_at=entry.at,
        last_step=event.last_step,
        detail=event.detail,
        gave_up=event.cause not in WORTH_ANOTHER_TRY and not missing,
        missing=missing,
    )
    return _end_attempt(state, event.attempt, end)


def _run_completed(state: RunState, entry: Entry, event: ev.RunCompleted) -> RunState:
    end = AttemptEnd(cause=Cause.DONE, stopped_at=entry.at, known_at=entry.at, last_step=event.step)
    ended = _end_attempt(state, event.attempt, end)
    return _end_run(ended, "completed", entry, Cause.DONE, final_commit=event.final_commit)


EFFECTS: dict[type, Callable[[RunState, Entry, Any], RunState]] = {
    ev.StopRequested: _stop_requested,
    ev.ResumeRequested: _resume_requested,
    ev.PruneRequested: _prune_requested,
    ev.EndCorrected: _end_corrected,
    ev.LaunchIntended: _launch_intended,
    ev.LaunchRecorded: _launch_recorded,
    ev.GuardArmed: _guard_armed,
    ev.InstanceStopped: _stopped,
    ev.LaunchClosed: _launch_closed,
    ev.DrainRequested: _drain_requested,
    ev.InstanceCondemned: _condemned,
    ev.MemberReleased: _released,
    ev.InstanceGone: _gone,
    ev.DeadlineOutOfReach: _deadline_out_of_reach,
    ev.BudgetNearlySpent: _budget_nearly_spent,
    ev.RunStopped: _run_stopped,
    ev.RunFailed: _run_failed,
    ev.AttemptStarted: _attempt_started,
    ev.MemberReady: _ready,
    ev.ResumedFrom: _resumed_from,
    ev.TrainingStarted: _training_started,
    ev.NoticeSeen: _notice_seen,
    ev.NoticesUnseen: _notices_unseen,
    ev.CheckpointCommitted: _committed,
    ev.CheckpointFailed: _save_failed,
    ev.CheckpointRetired: _retired,
    ev.StateNotCarried: _not_carried,
    ev.OutputsStored: _outputs_stored,
    ev.EpochCompleted: _epoch_completed,
    ev.TrainerExited: _trainer_exited,
    ev.AttemptDrained: _attempt_drained,
    ev.AttemptEnded: _attempt_ended,
    ev.RunCompleted: _run_completed,
}
