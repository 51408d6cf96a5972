"""Computes the cost of each interruption from the ledger's entries before and after it. Pure: no clock, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotrun.account.outcome import interrupted
from spotrun.instance import EndedBy
from spotrun.offering import Offering
from spotrun.run.gang import MemberName
from spotrun.run.state import Attempt, RunState, Trainer


@dataclass(frozen=True)
class Interruption:
    """
    An interruption: the cloud took an attempt's instance. In a gang, `members` names the members whose instances the
    cloud took.

    `at` is the time at which training stopped. `notice_lead` is the time from the notice to its deadline; None without
    a notice. `detection` is the time from the instance's end until the ledger recorded that end. `commit_age` is the
    age, at the time `at`, of the checkpoint from which training later resumed; None if training began from scratch.
    `to_first_step` is the time from `at` to the first step of a later trainer; None if no later trainer has made a step
    yet. It does not include time in which the run was paused (stopped by the user or failed, and later resumed).
    """

    attempt: int
    offering: Offering
    at: datetime
    notice_lead: timedelta | None
    detection: timedelta
    commit_age: timedelta | None
    steps_lost: int
    to_first_step: timedelta | None
    members: tuple[MemberName, ...] = ()


def interruptions(state: RunState) -> tuple[Interruption, ...]:
    """Return the interruptions in the order of the attempts that they ended."""
    redone: Counter[datetime] = Counter()
    for at, count in state.steps_redone:
        redone[at] += count
    found: list[Interruption] = []
    following = next_trainer = next_started = None  # read backwards, so that each attempt's successor is known
    for attempt in reversed(state.attempts.values()):
        if interrupted(state, attempt):
            one = _interruption(state, attempt, next_trainer, next_started, redone)
            lost = _members_lost(state, attempt, following) if state.of_gangs else ()
            found.append(replace(one, members=lost))
        following = attempt
        for trainer in reversed(attempt.trainers):
            next_trainer, next_started = trainer, trainer if trainer.started_at is not None else next_started
    return tuple(reversed(found))


def _interruption(
    state: RunState,
    attempt: Attempt,
    next_trainer: Trainer | None,
    next_started: Trainer | None,
    redone: Mapping[datetime, int],
) -> Interruption:
    """
    Compute one interruption. `next_trainer` is the first trainer after the interrupted attempt. `next_started` is the
    first later trainer that made a step. They differ if `next_trainer` ended before its first step. An attempt that was
    interrupted before it had a trainer lost no step: what is redone after it was lost by the attempt that trained last.
    """
    end = attempt.end
    assert end is not None
    gone_at = min(end.known_at, state.still_from(attempt) or end.known_at)
    stood_still_at = min(end.stopped_at, gone_at)
    return Interruption(
        attempt=attempt.number,
        offering=state.launch_of(attempt).intent.offering,
        at=stood_still_at,
        notice_lead=_notice_lead(attempt),
        detection=end.known_at - gone_at,
        commit_age=_commit_age(state, next_trainer, stood_still_at),
        steps_lost=redone.get(next_trainer.resumed_at, 0) if next_trainer is not None and attempt.trainers else 0,
        to_first_step=_to_first_step(state, next_started, stood_still_at),
    )


def _members_lost(state: RunState, attempt: Attempt, following: Attempt | None) -> tuple[MemberName, ...]:
    """
    Return the members that the gang lost to the cloud. These are the members that were missing when this attempt ended,
    had a notice, or were ended by the cloud. Members of the next attempt (`following`) are left out.
    """
    assert attempt.end is not None
    lost = {*attempt.end.missing, *(name for name in attempt.names if _is_taken(state, attempt, name))}
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
    Return the age, at the time `at`, of the commit from which training resumed. `trainer` is the first trainer of a
    later attempt. If it is None, training has not resumed yet: use the newest commit, from which it will resume.
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
