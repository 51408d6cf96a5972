"""
How often spot is lost under this run, and how often its notice was of use: what `checkpoint.every: auto` adapts to.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from spotrun.events import Cause
from spotrun.intervals import MEAN_TIME_BETWEEN_INTERRUPTIONS
from spotrun.offering import CapacityType
from spotrun.state import Attempt, RunState


class Hazard(msgspec.Struct, frozen=True):
    """`saved` is the share of losses that undo no step, because their notice was used for one more commit."""

    mean_time_between: timedelta = MEAN_TIME_BETWEEN_INTERRUPTIONS
    saved: float = 0.0


def observed_hazard(state: RunState, now: datetime) -> Hazard:
    """
    What the ledger says of spot, beside one loss without notice that is assumed to have been seen already.

        mean time between losses = (assumed + time on spot) / (1 + losses)
        saved = losses after which the last step was committed / (1 + losses)
    """
    spot = [attempt for attempt in state.attempts.values() if _on_spot(attempt, state)]
    lost = [attempt for attempt in spot if attempt.end is not None and attempt.end.cause is Cause.INTERRUPTED]
    final = {commit.event.attempt for commit in state.commits if commit.event.final}
    up = sum((_until(attempt, now) - attempt.booted_at for attempt in spot), timedelta())
    mean = (MEAN_TIME_BETWEEN_INTERRUPTIONS + max(up, timedelta())) / (1 + len(lost))
    return Hazard(mean, sum(attempt.number in final for attempt in lost) / (1 + len(lost)))


def _on_spot(attempt: Attempt, state: RunState) -> bool:
    return state.launch_of(attempt).intent.offering.capacity_type is CapacityType.SPOT


def _until(attempt: Attempt, now: datetime) -> datetime:
    return now if attempt.end is None else attempt.end.stopped_at
