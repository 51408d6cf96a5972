"""What each interruption cost, from what the ledger says around it. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from spotrun.account.outcome import interrupted
from spotrun.offering import Offering
from spotrun.run.state import Attempt, RunState, Trainer


@dataclass(frozen=True)
class Interruption:
    """
    The cloud took the instance of an attempt.

    `at` is when training stood still. `notice_lead` is how long before its end the instance was told of it; None where
    it was not. `detection` is how long it was gone and nobody had written that down. `commit_age` is how old the state
    was, at `at`, from which training went on; None where it began anew. `to_first_step` is how long it took from `at`
    to the first step of a new trainer, without the pauses of the run; None while there is none.
    """

    attempt: int
    offering: Offering
    at: datetime
    notice_lead: timedelta | None
    detection: timedelta
    commit_age: timedelta | None
    steps_lost: int
    to_first_step: timedelta | None


def interruptions(state: RunState) -> tuple[Interruption, ...]:
    """In the order of the attempts that they ended."""
    attempts = list(state.attempts.values())
    return tuple(
        _told(state, attempt, attempts[index + 1 :])
        for index, attempt in enumerate(attempts)
        if interrupted(state, attempt)
    )


def _told(state: RunState, attempt: Attempt, later: list[Attempt]) -> Interruption:
    end, launch = attempt.end, state.launch_of(attempt)
    assert end is not None
    gone_at = end.known_at if launch.gone is None else min(end.known_at, launch.gone.ended_at)
    stood_still_at = min(end.stopped_at, gone_at)
    trainers = [trainer for each in later for trainer in each.trainers]
    return Interruption(
        attempt=attempt.number,
        offering=launch.intent.offering,
        at=stood_still_at,
        notice_lead=_notice_lead(attempt),
        detection=end.known_at - gone_at,
        commit_age=_commit_age(state, trainers, stood_still_at),
        steps_lost=_steps_lost(state, trainers),
        to_first_step=_to_first_step(state, trainers, stood_still_at),
    )


def _notice_lead(attempt: Attempt) -> timedelta | None:
    if attempt.notice is None or attempt.notice_at is None or attempt.notice.deadline_at is None:
        return None
    return max(timedelta(0), attempt.notice.deadline_at - attempt.notice_at)


def _commit_age(state: RunState, trainers: list[Trainer], at: datetime) -> timedelta | None:
    """Of what the next trainer chose; of what it would choose, where there is none yet."""
    number = trainers[0].commit if trainers else None
    commit = state.latest_commit() if not trainers else None if number is None else state.commit(number)
    return None if commit is None else max(timedelta(0), at - commit.event.taken_at)


def _steps_lost(state: RunState, trainers: list[Trainer]) -> int:
    """What the next trainer does again, as the account counts it."""
    if not trainers:
        return 0
    return sum(count for at, count in state.steps_redone if at == trainers[0].resumed_at)


def _to_first_step(state: RunState, trainers: list[Trainer], at: datetime) -> timedelta | None:
    started_at = next((trainer.started_at for trainer in trainers if trainer.started_at is not None), None)
    if started_at is None:
        return None
    pauses = (min(started_at, pause.until) - max(at, pause.since) for pause in state.pauses)
    return max(timedelta(0), started_at - at - sum((max(timedelta(0), pause) for pause in pauses), timedelta(0)))
