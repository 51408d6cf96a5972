"""Measures the time from the request for an instance to its first new step."""

from __future__ import annotations

from spotrun.policy import assumptions
from spotrun.policy.launches import is_standby
from spotrun.run.state import RunState


def changeover(state: RunState) -> float:
    """
    Return the seconds to allow for a changeover: a little more than the longest one measured.

    The longest changeover is usually the run's first one, because it includes all of `setup`, while later instances
    only unpack the setup cache. It is used nevertheless: all of `setup` runs again if the instance type changes or the
    cache is damaged, and the deadline has to be met even then.
    """
    measured = measured_starts(state)
    if not measured:
        return assumptions.CHANGEOVER.total_seconds()
    return max(measured.values()) * assumptions.CHANGEOVER_DOUBT


def measured_starts(state: RunState) -> dict[int, float]:
    """
    Return the measured changeovers in seconds, keyed by the number of the attempt with which the changeover ended.

    An attempt on a standby is left out, because its time would include the standby's wait for the takeover. An attempt
    of a gang is left out if none of its members was newly started.
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
