"""
Delays the next standby if several standbys in a row have failed while the training continued.

The failures may have a lasting cause, such as a bad image, or a `setup` that now fails. Each try costs a boot. So after
three failures in a row, the run pauses before it requests the next standby. Each further failure doubles the pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile

import msgspec

from spotrun.clock import zone
from spotrun.offering import CapacityType
from spotrun.policy.launches import STILLBORN_MAX, denied, stillborn
from spotrun.policy.lives import HANDOVER_BEFORE_END, lives_until
from spotrun.run.reasons import in_one_line
from spotrun.run.state import Attempt, Launch, RunState

FIRST_PAUSE = timedelta(minutes=10)
"""The pause after three failures in a row."""
DOUBLINGS_MAX = 8
"""
Maximum number of times that the pause is doubled. After that many times, the pause is about as long as an instance's
life. There has to be a limit, because a ledger that an earlier version wrote may have hundreds of failures in a row.
"""


class FailedStandbys(msgspec.Struct, frozen=True):
    """
    A series of failed standbys: how many there are, why the newest one failed, and when the run will request the next
    one.
    """

    count: int
    why: str
    again_at: datetime
    time_scale: float

    @property
    def when(self) -> str:
        return f"{self.again_at:%a %H:%M:%S} {zone(self.time_scale)}"

    @property
    def sentence(self) -> str:
        return (
            f"{self.count} standbys in a row failed (the newest: {self.why}; `spotrun logs` shows their output): "
            f"training continues, and the next one is requested at {self.when}"
        )


def failed_standbys(state: RunState, capacity_type: CapacityType) -> FailedStandbys | None:
    """
    Return the standbys of one capacity type that have failed in a row since the current attempt began. Return None if
    there are fewer than three.

    If a standby had no capacity or was interrupted, this is not counted as a failure, because the next standby may
    still boot. After a notice, counting starts again from 0, so the next standby is requested without a pause. That
    standby is worth its cost, because without it the training will stop when the instance is lost.
    """
    current = state.current
    if current is None:
        return None
    since, newest = current.notice_at or current.started_at, state.asked_last(current).number
    standbys = takewhile(lambda launch: launch.number > newest, reversed(state.launches.values()))
    failed = [
        launch
        for launch in standbys
        if launch.intent.offering.capacity_type is capacity_type and launch.intended_at >= since and _failed(launch)
    ]
    if len(failed) < STILLBORN_MAX:
        return None
    return FailedStandbys(len(failed), _why(failed[0]), _again_at(state, current, failed), state.created.time_scale)


def failing_standbys(state: RunState) -> FailedStandbys | None:
    """
    Return the failed standbys of the capacity type whose next standby has to wait longest. Return None if no standby
    has to wait.
    """
    found = (failed_standbys(state, capacity_type) for capacity_type in CapacityType)
    return max((each for each in found if each is not None), key=lambda each: each.again_at, default=None)


def _failed(launch: Launch) -> bool:
    """
    Return True if a launch failed before its instance took over, for a reason that is neither the market nor a quota.
    """
    return denied(launch) or stillborn(launch)


def _why(launch: Launch) -> str:
    if launch.closed is not None:
        return in_one_line(launch.closed.detail) or str(launch.closed.cause)
    assert launch.gone is not None
    return f"instance {launch.gone.instance_id}, {launch.gone.evidence}"


def _again_at(state: RunState, current: Attempt, failed: Sequence[Launch]) -> datetime:
    """
    Return the time at which the next standby can be requested. This is normally the end of the pause. It is earlier if
    a standby requested at the end of the pause would not be ready before the running instance's time-to-live expires.
    """
    newest = failed[0]
    failed_at = newest.closed_at or (newest.intended_at if newest.gone is None else newest.gone.ended_at)
    after_pause = failed_at + FIRST_PAUSE * (1 << min(len(failed) - STILLBORN_MAX, DOUBLINGS_MAX))
    last_call = lives_until(state, current) - HANDOVER_BEFORE_END
    return min(after_pause, last_call) if failed_at < last_call else after_pause
