"""The outcome of a run, of its attempts and of its epochs. Reports use the same words."""

from __future__ import annotations

from datetime import datetime

from spotrun.instance import EndedBy
from spotrun.run.events import Cause, EpochsEnd
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
    Return the run's current state in one word. Before its end:

    - `created`
    - `waiting`: for capacity, or for a runner to request a machine
    - `starting`: a machine is requested, or is about to train from scratch
    - `restoring`
    - `training`
    - `leaving`: the attempt has a notice or a drain request
    - `stopping`: the user requested a stop

    After its end: `completed`, `stopped` or `failed`.
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
        return "training"
    return "starting" if state.latest_commit() is None else "restoring"


def is_plain(state: RunState) -> bool:
    """
    Return whether the run is plain: a command that reports no steps, and so counts as training from its start. The
    checkpoints of a plain run, if it has any, contain only files.

    A job that names a command is plain until its training reports a first step. A script is plain if it has sent
    nothing to its agent for a while, or if it has completed without a step.
    """
    trainers = [trainer for attempt in state.attempts.values() for trainer in attempt.trainers]
    if state.has_trained or any(trainer.started_at for trainer in trainers):
        return False
    done = state.terminal is not None and state.terminal.outcome == "completed"
    silent = any(trainer.began_at for trainer in trainers)
    return done or silent or state.created.job("train").get("run") is not None


def completed_epochs(state: RunState) -> tuple[tuple[int, datetime], ...]:
    """
    Return the completed epochs (counted from 0), each with the time at which its account ends. From one entry to the
    next, neither the epoch nor the time decreases.

    An epoch is complete with the first surviving commit at or past its last step, or with the run's completion. Its
    account ends when the surviving pass over its data ended; a pass that was lost does not count.
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
    Return whether the cloud took one or more instances of this attempt.

    Usually the entry that ended the attempt says so. If a standby had taken over before the loss, the notice or the
    entry for the instance's end says so.
    """
    if attempt.end is None or attempt.end.cause is not Cause.REPLACED:
        return attempt.end is not None and attempt.end.cause is Cause.INTERRUPTED
    ends = [member.gone for member in state.members_of(attempt) if member.gone is not None]
    by_cloud = (gone for gone in ends if gone.ended_by is EndedBy.CLOUD)
    return attempt.notice is not None or any(gone.ended_at <= attempt.end.known_at for gone in by_cloud)
