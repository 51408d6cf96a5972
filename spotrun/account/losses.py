"""Computes the cost of each loss of training from the ledger's entries before and after it. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from spotrun.account.outcome import cause_of_end, fatal_ends
from spotrun.instance import EndedBy
from spotrun.offering import Offering
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from spotrun.run.state import Attempt, RunState, Trainer


@dataclass(frozen=True)
class Loss:
    """
    An interruption (the cloud took an attempt's instance), or another end of training that cost steps.

    `cause` is `Cause.INTERRUPTED` for an interruption. Otherwise it is the actor that ended the instance, or, if the
    instance was not the reason, the cause that the ledger names for the end of the attempt or of its trainer. In a
    gang, `members` names the members whose instances were lost.

    `at` is the time at which training stopped. `notice_lead` is the time from the notice to its deadline; None without
    a notice. `detection` is the time from the instance's end until the ledger recorded that end. `commit_age` is the
    age, at the time `at`, of the checkpoint from which training later resumed; None if training began from scratch.
    `to_first_step` is the time from `at` to the first step of a later trainer; None if no later trainer has made a step
    yet. It does not include time in which the run was paused (stopped by the user or failed, and later resumed).
    """

    attempt: int
    cause: Cause | EndedBy
    offering: Offering
    at: datetime
    commit_age: timedelta | None
    steps_lost: int
    to_first_step: timedelta | None
    notice_lead: timedelta | None = None
    detection: timedelta = timedelta(0)
    members: tuple[MemberName, ...] = ()


class _Following(NamedTuple):
    """
    The next attempt, the next trainer and the next trainer that made a step, after the end of a trainer. The last two
    differ if the next trainer ended before its first step.
    """

    attempt: Attempt | None = None
    trainer: Trainer | None = None
    started: Trainer | None = None


def losses(state: RunState) -> tuple[Loss, ...]:
    """
    Return the interruptions and the other losses of steps, earliest first. Together they lost the steps that the run
    has repeated.
    """
    found: list[Loss] = []
    following = _Following()  # read backwards, so that what followed is known
    for attempt in reversed(state.attempts.values()):
        found += _at_its_end(state, attempt, following)
        following = following._replace(attempt=attempt)
        for trainer in reversed(attempt.trainers):
            if trainer is not attempt.trainers[-1]:
                found += _at_a_restart(state, attempt, trainer, following)
            started = following.started if trainer.started_at is None else trainer
            following = _Following(attempt, trainer, started)
    return tuple(reversed(found))


def _at_its_end(state: RunState, attempt: Attempt, following: _Following) -> Iterator[Loss]:
    """
    Yield the loss of an attempt that ended in an interruption or cost steps. An attempt that ended before it had a
    trainer lost no step: what is redone after it was lost by the attempt that trained last.
    """
    if attempt.end is None:
        return
    end, cause = attempt.end, cause_of_end(state, attempt)
    steps_lost = following.trainer.steps_redone if following.trainer is not None and attempt.trainers else 0
    if not steps_lost and cause is not Cause.INTERRUPTED:
        return
    gone_at = min(end.known_at, state.still_from(attempt) or end.known_at)
    loss = _loss(state, attempt, cause, min(end.stopped_at, gone_at), steps_lost, following)
    members = _members_lost(state, attempt, following.attempt) if state.of_gangs else ()
    yield replace(loss, notice_lead=_notice_lead(attempt), detection=end.known_at - gone_at, members=members)


def _at_a_restart(state: RunState, attempt: Attempt, trainer: Trainer, following: _Following) -> Iterator[Loss]:
    """Yield the loss of a trainer that the agent restarted within the attempt, if the restart cost steps."""
    assert following.trainer is not None
    if following.trainer.steps_redone and trainer.exited is not None and trainer.exited_at is not None:
        steps_lost = following.trainer.steps_redone
        yield _loss(state, attempt, trainer.exited.cause, trainer.exited_at, steps_lost, following)


def _loss(
    state: RunState, attempt: Attempt, cause: Cause | EndedBy, at: datetime, steps_lost: int, following: _Following
) -> Loss:
    return Loss(
        attempt=attempt.number,
        cause=cause,
        offering=state.launch_of(attempt).intent.offering,
        at=at,
        commit_age=_commit_age(state, following.trainer, at),
        steps_lost=steps_lost,
        to_first_step=_to_first_step(state, following.started, at),
    )


def _members_lost(state: RunState, attempt: Attempt, following: Attempt | None) -> tuple[MemberName, ...]:
    """
    Return the members that the gang lost. These are the members that were missing when this attempt ended, had a
    notice, were ended by the cloud, or ended the attempt by their end. Members of the next attempt (`following`) are
    left out.
    """
    assert attempt.end is not None
    taken = (name for name in attempt.names if _is_taken(state, attempt, name))
    lost = {*attempt.end.missing, *fatal_ends(state, attempt), *taken}
    stay = () if following is None else following.names
    return tuple(name for name in attempt.names if name in lost and name not in stay)


def _is_taken(state: RunState, attempt: Attempt, name: MemberName) -> bool:
    gone = state.member(name).gone
    by_cloud = gone is not None and gone.ended_by is EndedBy.CLOUD
    return by_cloud or (attempt.notice is not None and attempt.notice.member == name)


def _notice_lead(attempt: Attempt) -> timedelta | None:
    if attempt.notice is None or attempt.notice_at is None or attempt.notice.deadline_at is None:
        return None
    return max(timedelta(0), attempt.notice.deadline_at - attempt.notice_at)


def _commit_age(state: RunState, trainer: Trainer | None, at: datetime) -> timedelta | None:
    """
    Return the age, at the time `at`, of the commit from which training resumed. `trainer` is the next trainer. If it is
    None, training has not resumed yet: use the newest commit, from which it will resume.
    """
    if trainer is None:
        commit = state.latest_commit()
    else:
        commit = None if trainer.commit is None else state.commit(trainer.commit)
    return None if commit is None else max(timedelta(0), at - commit.event.taken_at)


def _to_first_step(state: RunState, trainer: Trainer | None, at: datetime) -> timedelta | None:
    started_at = None if trainer is None else trainer.started_at
    if started_at is None:
        return None
    pauses = (min(started_at, pause.until) - max(at, pause.since) for pause in state.pauses)
    return max(timedelta(0), started_at - at - sum((max(timedelta(0), pause) for pause in pauses), timedelta(0)))
