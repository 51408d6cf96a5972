"""How long it takes from asking for an instance to its first new step, as this run has measured it."""

from __future__ import annotations

from spotrun.policy import assumptions
from spotrun.run.state import RunState


def changeover(state: RunState) -> float:
    """
    Seconds from asking for an instance to its first new step: a little more than the longest that was measured.

    The longest one ran the whole set-up, and the next one will mostly unpack it. But on another type of instance, or if
    the stored set-up was damaged, the set-up runs again, and the deadline has to be kept then too.
    """
    measured = measured_starts(state)
    if not measured:
        return assumptions.CHANGEOVER.total_seconds()
    return max(measured.values()) * assumptions.CHANGEOVER_DOUBT


def measured_starts(state: RunState) -> dict[int, float]:
    """The seconds that the start of each attempt took. Standbys are left out: they also wait until they are wanted."""
    return {
        number: (attempt.trainers[0].started_at - state.launch_of(attempt).intended_at).total_seconds()
        for number, attempt in state.attempts.items()
        if attempt.trainers
        and attempt.trainers[0].started_at is not None
        and state.launch_of(attempt).intent.standby_for is None
    }
