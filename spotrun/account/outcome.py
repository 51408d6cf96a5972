"""
Computes a run's current state as one word, its completed epochs, and the reasons why its attempts ended.
"""

from __future__ import annotations

from datetime import datetime

from spotrun.instance import EndedBy
from spotrun.run.events import Cause, EpochsEnd, InstanceGone
from spotrun.run.gang import MemberName
from spotrun.run.state import Attempt, Epoch, RunState


def outcome(state: RunState) -> str:
    return "running" if state.terminal is None else state.terminal.outcome


STATES = (
    *("created", "waiting", "starting", "restoring", "training", "leaving", "stopping"),
    *("completed", "stopped", "failed"),
)
"""All words that `status_word` returns."""


def status_word(state: RunState) -> str:
    """
    Return the run's current state as one word. Before the run's end:

    - `created`
    - `waiting`: the run waits for capacity, for a runner that requests a machine, or for room in its store
    - `starting`: a machine has been requested, or an attempt without a checkpoint has not trained yet
    - `restoring`: the attempt is loading a checkpoint
    - `training`
    - `leaving`: the attempt has a notice or a drain request
    - `stopping`: the user requested a stop

    After the run's end: `completed`, `stopped` or `failed`.
    """
    if state.terminal is not None:
        return state.terminal.outcome
    if state.stop_requested:
        return "stopping"
    if state.current is not None:
        return _attempt_word(state, state.current)
    if state.pending_launch is not None:
        return "starting"
    return "waiting" if state.launches else "created"


def _attempt_word(state: RunState, attempt: Attempt) -> str:
    if attempt.leaving:
        return "leaving"
    trainer = attempt.trainers[-1] if attempt.trainers else None
    if trainer is not None and trainer.exited is None and (trainer.started_at is not None or is_plain(state)):
        return "training" if attempt.refused_at is None else "waiting"
    return "starting" if state.latest_commit() is None else "restoring"


def is_plain(state: RunState) -> bool:
    """
    Return True if the run is plain: its training reports no steps. The time of its first step is unknown, so the run
    counts as training as soon as the process of its training starts. Its checkpoints, if any, contain only files.

    If the job names a command, the run is plain until the training reports a first step. If the job names a script, the
    run becomes plain when the script has run for a while without a message to its agent, or has completed without
    reporting a step.
    """
    trainers = [trainer for attempt in state.attempts.values() for trainer in attempt.trainers]
    if state.has_trained or any(trainer.started_at for trainer in trainers):
        return False
    done = state.terminal is not None and state.terminal.outcome == "completed"
    silent = any(trainer.began_at for trainer in trainers)
    return done or silent or state.created.job("train").get("run") is not None


def completed_epochs(state: RunState) -> tuple[tuple[int, datetime], ...]:
    """
    Return the completed epochs (counted from 0), each with the time up to which costs are charged to it. Later costs
    are charged to the next epoch. Epochs and times are in ascending order.

    An epoch counts as completed if the run is completed, or if a commit at the epoch's last step or later exists and
    training has not resumed from an earlier commit since. Its time is when the training reached the end of the epoch's
    data; if the last steps of the epoch were lost, when they had been repeated.
    """
    commits = [commit for commit in state.commits if not commit.cut_off and not commit.event.suspect]
    completed_at = state.terminal.at if state.terminal is not None and state.terminal.outcome == "completed" else None
    found: list[tuple[int, datetime]] = []
    latest = state.created_at
    index = 0
    for epoch in state.epochs:
        while index < len(commits) and commits[index].event.step < epoch.event.step:
            index += 1
        durable_at = commits[index].at if index < len(commits) else completed_at
        if durable_at is None:
            break
        latest = max(latest, _account_end(state, epoch, durable_at))
        found.append((epoch.event.epoch, latest))
    return tuple(found)


def _account_end(state: RunState, epoch: Epoch, durable_at: datetime) -> datetime:
    if state.created.epochs_end is EpochsEnd.DURABLE:
        return max(epoch.at, durable_at)
    return min(epoch.event.ended_at, epoch.at)


def interrupted(state: RunState, attempt: Attempt) -> bool:
    """
    Return True if the cloud took one or more instances of this attempt.

    Usually the entry that ended the attempt names an interruption as the cause. There are two exceptions: a standby
    took over before the instance was lost, or the other members of a gang missed a member before the cloud reported its
    end. In these cases the attempt was interrupted if it had a notice, or if the cloud ended one of the instances whose
    loss ended it.
    """
    end = attempt.end
    if end is None or not (end.missing or end.cause is Cause.REPLACED):
        return end is not None and end.cause is Cause.INTERRUPTED
    by_cloud = (gone.ended_by is EndedBy.CLOUD for gone in fatal_ends(state, attempt).values())
    return end.cause is Cause.INTERRUPTED or attempt.notice is not None or any(by_cloud)


def fatal_ends(state: RunState, attempt: Attempt) -> dict[MemberName, InstanceGone]:
    """
    Return the ends of the instances whose loss ended the attempt: they ended before the attempt's end was recorded, or
    the rest of the gang missed them and they never trained again. An instance that spotrun itself ended is left out.
    """
    assert attempt.end is not None
    found: dict[MemberName, InstanceGone] = {}
    for name in attempt.names:
        member = state.member(name)
        if member.gone is None or member.condemned is not None or member.released is not None:
            continue
        missed = name in attempt.end.missing and state.attempt_of(name) == attempt
        if missed or member.gone.ended_at <= attempt.end.known_at:
            found[name] = member.gone
    return found


def cause_of_end(state: RunState, attempt: Attempt) -> Cause | EndedBy:
    """
    Return the reason why an attempt ended: `Cause.INTERRUPTED` if the cloud took an instance, and the actor that ended
    the instance if another one did. Otherwise return the cause that the ledger names.
    """
    assert attempt.end is not None
    if interrupted(state, attempt):
        return Cause.INTERRUPTED
    ends = fatal_ends(state, attempt).values() if attempt.end.cause is Cause.EXTERNAL else ()
    return min(ends, key=lambda gone: gone.ended_at).ended_by if ends else attempt.end.cause
