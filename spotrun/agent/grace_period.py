"""
Computes when this attempt has to end, and why: because of a notice, a runner's drain request, or a user's request to
stop.

    notice ---- training goes on ---- leave_s ---- the last checkpoint is saved ---- give_up_s -- deadline

After a notice, training goes on until `leave_s`, so that as few paid seconds as possible are wasted. At `give_up_s` the
agent stops trying to save. Three implementations of `Times` compute these two times: for a training that reports its
steps, for a command whose state is saved, and for any other command.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from spotrun.agent.decisions import final_snapshot_fits
from spotrun.agent.inbox import NoticeHeard
from spotrun.agent.pace import Pace
from spotrun.clock import Clock
from spotrun.intervals import drain_moment
from spotrun.run.events import Cause
from spotrun.run.state import RunState

NOTICE_MARGIN_S = 0.3
"""
Seconds of system time that the agent keeps in reserve before a notice's deadline, because a busy machine may schedule
this process late.
"""
LAST_WORD_S = 1.0
"""Seconds of run time before the deadline at which the agent gives up on a final snapshot and records that."""
LAST_WORD_MIN_S = 0.3
"""
Lower limit of LAST_WORD_S in seconds of system time. On a busy machine, even the write of the record may have to wait
for the processor.
"""
DRAIN_WITHIN_S = 120.0
"""Maximum seconds of run time of a drain that has no deadline."""
DRAIN_WITHIN_MIN_S = 60.0
"""Lower limit of DRAIN_WITHIN_S in seconds of system time, because a step or a validation cannot be sped up."""
TERMINATED_WITHIN_S = 30.0
"""
Seconds of run time between SIGTERM and SIGKILL, as on Kubernetes and Slurm. In this time a command can save its work.
The time applies to commands of which spotrun makes no checkpoints. SIGTERM is sent as late as possible, because the
command might complete before it gets SIGTERM.
"""
FILES_S = 10.0
"""
Seconds of run time between SIGKILL and the deadline, in which the agent stores the command's files. This time is never
longer than a sixth of the time from the notice to the deadline.
"""
TERMINATED_WITHIN_MIN_S = 5.0
"""Lower limit of TERMINATED_WITHIN_S in seconds of system time. It applies only to a drain that has no deadline."""


UPLOAD_ALONE_SHARE = 0.25
"""
In the last part of the time between a notice and its deadline, training stops, so that an upload has the machine to
itself. This is that part, as a share of the time. Training stops only if an earlier snapshot is still being uploaded
and there is no time for a final snapshot.

If there is time for a final snapshot, the upload is cancelled, and the final snapshot is saved instead. From the notice
on, the upload has priority over training, because there may be time for a final snapshot after all if the upload
finishes early.
"""


class Stage(Enum):
    STAYING = auto()
    NOTICED = auto()
    DRAINING = auto()
    TOO_LATE = auto()


class Times(Protocol):
    """The times at which a training or a command has to stop, in monotonic seconds of run time."""

    def leave_s(self, drain: GracePeriod) -> float:
        """Return the time at which training has to stop so that the deadline is met."""
        ...

    def give_up_s(self, drain: GracePeriod) -> float:
        """
        Return the time at which the agent stops waiting, and kills a process that has not ended. With a deadline, it is
        shortly before the deadline. Without one, it is a fixed time after the drain began.
        """
        ...

    def too_short(self, left_s: float) -> str:
        """
        Return the reason why a final snapshot cannot be saved in `left_s` seconds. Return "" if it can, or if this kind
        of training takes no final snapshot.
        """
        ...


@dataclass
class GracePeriod:
    """
    The planned end of an attempt: when and why. This class computes times; other classes act on them.

    `deadline_s` is the time by which the attempt must have ended, because the cloud then takes the instance; None
    without a notice. `at_once` is True if a user or a runner wants the attempt to end immediately. `draining_s` is the
    time at which the drain began; None if it has not begun. Times are monotonic run time.
    """

    clock: Clock
    reason: str = ""
    cause: Cause = Cause.INTERRUPTED
    deadline_s: float | None = None
    noticed_s: float = 0.0
    at_once: bool = False
    draining_s: float | None = None
    too_short: str = ""

    def notice(self, notice: NoticeHeard) -> None:
        self.deadline_s = notice.deadline_s
        self.noticed_s = self.clock.monotonic()
        self.reason, self.cause = self.reason or "interruption notice", Cause.INTERRUPTED

    def read(self, state: RunState, attempt: int) -> None:
        """Read from the ledger whether a user or a runner wants this attempt to end."""
        mine = state.attempts.get(attempt)
        if self.at_once or mine is None:
            return
        if state.stop_requested:
            self._go("stop requested", Cause.STOPPED)
        elif mine.drain is not None:
            self._go(mine.drain.reason, Cause.REPLACED)

    def _go(self, reason: str, cause: Cause) -> None:
        self.at_once = True
        if self.deadline_s is None:
            self.reason, self.cause = reason, cause

    def stage(self, times: Times) -> Stage:
        now_s = self.clock.monotonic()
        if self.draining_s is not None:
            return Stage.TOO_LATE if now_s >= times.give_up_s(self) else Stage.DRAINING
        if self.at_once:
            return Stage.DRAINING
        if self.deadline_s is None:
            return Stage.STAYING
        return Stage.DRAINING if now_s >= times.leave_s(self) else Stage.NOTICED

    def begin(self, times: Times) -> None:
        self.draining_s = self.clock.monotonic()
        if self.deadline_s is not None:
            self.too_short = times.too_short(max(0.0, times.give_up_s(self) - self.draining_s))

    def until_next_s(self, times: Times) -> float:
        """Return how many seconds of system time remain until `leave_s` or, during a drain, until `give_up_s`."""
        if self.deadline_s is None and self.draining_s is None:
            return float("inf")
        due_s = times.give_up_s(self) if self.draining_s is not None else times.leave_s(self)
        return (due_s - self.clock.monotonic()) / self.clock.scale

    @property
    def window_s(self) -> float:
        """Seconds of run time from the notice to the deadline that it announced."""
        assert self.deadline_s is not None
        return self.deadline_s - self.noticed_s

    def durable_by_s(self) -> float:
        """Return the time by which a last checkpoint has to be durable."""
        if self.deadline_s is not None:
            return self.deadline_s - max(LAST_WORD_S, LAST_WORD_MIN_S * self.clock.scale)
        assert self.draining_s is not None
        return self.draining_s + max(DRAIN_WITHIN_S, DRAIN_WITHIN_MIN_S * self.clock.scale)

    def killed_at_s(self) -> float:
        """Return the time at which a command is killed if it has not ended after SIGTERM."""
        if self.deadline_s is not None:
            return self.deadline_s - max(min(FILES_S, self.window_s / 6), LAST_WORD_MIN_S * self.clock.scale)
        assert self.draining_s is not None
        return self.draining_s + max(TERMINATED_WITHIN_S, TERMINATED_WITHIN_MIN_S * self.clock.scale)


@dataclass(frozen=True)
class SnapshotTimes:
    """
    The times for a training that takes a final snapshot. They are computed from the durations of its steps and saves.
    `uploading` is True while an earlier snapshot is being uploaded.
    """

    pace: Pace
    uploading: bool = False

    def leave_s(self, drain: GracePeriod) -> float:
        assert drain.deadline_s is not None
        pace = self.pace
        commit_s = None if pace.commit_s is None else pace.commit_s + (pace.stall_s or 0.0)
        margin_s = (NOTICE_MARGIN_S + LAST_WORD_MIN_S) * drain.clock.scale
        usual_s = drain_moment(drain.deadline_s, drain.window_s, commit_s, pace.step_s or 0.0, margin_s)
        if self._fits(drain.durable_by_s() - drain.clock.monotonic()):
            return usual_s
        return max(usual_s, drain.deadline_s - drain.window_s * UPLOAD_ALONE_SHARE)

    def give_up_s(self, drain: GracePeriod) -> float:
        return drain.durable_by_s()

    def too_short(self, left_s: float) -> str:
        if self._fits(left_s):
            return ""
        return f"{left_s:.0f} s were left, but saving a final snapshot takes {self.pace.commit_s:.0f} s"

    def _fits(self, left_s: float) -> bool:
        return final_snapshot_fits(left_s, self.pace.commit_s, uploading=self.uploading)


@dataclass(frozen=True)
class SigtermTimes:
    """The times for a command whose state is not saved. The agent sends SIGTERM as late as possible."""

    def leave_s(self, drain: GracePeriod) -> float:
        return drain.killed_at_s() - min(TERMINATED_WITHIN_S, drain.window_s / 2)

    def give_up_s(self, drain: GracePeriod) -> float:
        return drain.killed_at_s()

    def too_short(self, left_s: float) -> str:
        return ""


@dataclass(frozen=True)
class StateTimes(SigtermTimes):
    """
    The times for a command whose state the agent stores after the command has ended.

    `takes_s` is the measured time from SIGTERM until the state is durable, in seconds of run time; None if it was never
    measured. `ended` is True once the command has ended. Then the agent has no process left to kill, and uses all
    remaining time to store the state.
    """

    takes_s: float | None
    ended: bool = False

    def leave_s(self, drain: GracePeriod) -> float:
        assert drain.deadline_s is not None
        margin_s = max(LAST_WORD_S, (NOTICE_MARGIN_S + LAST_WORD_MIN_S) * drain.clock.scale)
        return drain_moment(drain.deadline_s, drain.window_s, self.takes_s, 0.0, margin_s)

    def give_up_s(self, drain: GracePeriod) -> float:
        return drain.durable_by_s() if self.ended else drain.killed_at_s()
