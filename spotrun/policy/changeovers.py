"""Measured times from the request for an instance to its first new step."""

from __future__ import annotations

from spotrun.policy import assumptions
from spotrun.policy.launches import is_standby
from spotrun.run.state import RunState


def changeover(state: RunState) -> float:
    """
    Return the seconds from the request for an instance to its first new step: a little more than the longest measured
    time.

    The longest start is usually the first, with the whole set-up; later starts unpack the stored set-up. But the whole
    set-up runs again on another instance type, or if the stored set-up is damaged, and a deadline has to be met then
    too.
    """
    measured = measured_starts(state)
    if not measured:
        return assumptions.CHANGEOVER.total_seconds()
    return max(measured.values()) * assumptions.CHANGEOVER_DOUBT


def measured_starts(state: RunState) -> dict[int, float]:
    """
    Return how many seconds the start of each attempt took, by attempt number.

    Standbys are left out, because their time would include the wait until the run needs them. Gangs without a new
    member are left out too.
    """
    found: dict[int, float] = {}
    known: set[int] = set()
    for number, attempt in state.attempts.items():
        launch = state.asked_last(attempt)
        is_new = launch.number not in known and not is_standby(state, launch)
        known.add(launch.number)
        if is_new and attempt.trainers and attempt.trainers[0].started_at is not None:
            found[number] = (attempt.trainers[0].started_at - launch.intended_at).total_seconds()
    return found
