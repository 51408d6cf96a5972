"""Computes why and when this attempt has to leave: the cloud's notice, a runner's drain, a user's stop."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from spotrun.agent.decisions import final_snapshot_fits
from spotrun.agent.inbox import NoticeHeard
from spotrun.agent.pace import Pace
from spotrun.clock import Clock
from spotrun.intervals import drain_moment
from spotrun.run.events import Cause
from spotrun.run.state import RunState

NOTICE_MARGIN_S = 0.3
"""System seconds that a busy machine may lose to scheduling."""
LAST_WORD_S = 1.0
"""Run seconds before the deadline at which the agent writes that the final snapshot will not be durable in time."""
LAST_WORD_MIN_S = 0.3
"""The same in system time: on a busy machine the write itself may have to wait for the processor."""
DRAIN_WITHIN_S = 120.0
"""Maximum run seconds of a drain without a deadline."""
DRAIN_WITHIN_MIN_S = 60.0
"""The same in system time: a step or a validation cannot be hurried."""
TERMINATED_WITHIN_S = 30.0
"""
Run seconds between SIGTERM and SIGKILL for a command without checkpoints of ours, as on Kubernetes and Slurm. Some such
commands save by themselves then; before that moment each of them may still come to its end.
"""
FILES_S = 10.0
"""
Run seconds between SIGKILL and the deadline, to store the files of the command; at most a sixth of a short notice.
"""
TERMINATED_WITHIN_MIN_S = 5.0
"""The same as TERMINATED_WITHIN_S in system time, without a deadline."""


UPLOAD_ALONE_SHARE = 0.25
"""
Share of a notice for an upload in flight that is not given up. The upload may be done before, as it goes first now:
then there may be time for a final snapshot.
"""


class Stage(Enum):
    STAYING = auto()
    NOTICED = auto()
    DRAINING = auto()
    TOO_LATE = auto()


@dataclass
class Drain:
    """
    Times of the attempt's end; this class does not act. `deadline_s` is when there will be no more time, `draining_s`
    since when training has to stop; monotonic run time.
    """

    clock: Clock
    reason: str = ""
    cause: Cause = Cause.INTERRUPTED
    deadline_s: float | None = None
    noticed_s: float = 0.0
    at_once: bool = False
    draining_s: float | None = None
    too_short: str = ""
    keeps_state: bool = False
    """True for a command whose state has to be stored once it has ended."""
    leaving_s: float | None = None
    """Measured seconds from SIGTERM until that state is durable; None if unmeasured."""
    _plain: bool = False

    def notice(self, notice: NoticeHeard) -> None:
        self.deadline_s = notice.deadline_s
        self.noticed_s = self.clock.monotonic()
        self.reason, self.cause = self.reason or "interruption notice", Cause.INTERRUPTED

    def read(self, state: RunState, attempt: int) -> None:
        """Read the ledger's orders for this attempt."""
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

    def stage(self, pace: Pace, *, uploading: bool = False, plain: bool = False) -> Stage:
        """
        Return the stage. `uploading`: a snapshot is on its way. `plain`: there is nothing to save, so training goes on
        until the last safe moment.
        """
        now_s = self.clock.monotonic()
        if self.draining_s is not None:
            return Stage.TOO_LATE if now_s >= self._give_up_s() else Stage.DRAINING
        if self.at_once:
            return Stage.DRAINING
        if self.deadline_s is None:
            return Stage.STAYING
        return Stage.DRAINING if now_s >= self._drain_s(pace, uploading, plain) else Stage.NOTICED

    def begin(self, pace: Pace, *, uploading: bool, plain: bool = False) -> None:
        """Begin to drain. `uploading`: another snapshot is on its way."""
        self.draining_s, self._plain = self.clock.monotonic(), plain
        left_s = max(0.0, self._give_up_s() - self.draining_s)
        fits = final_snapshot_fits(left_s, pace.commit_s, uploading=uploading)
        if self.deadline_s is not None and not fits:
            self.too_short = f"{left_s:.0f} s were left, and to save a final snapshot takes {pace.commit_s:.0f} s"

    def command_ended(self) -> None:
        """Note that the command has ended by itself after SIGTERM: the rest of the time belongs to its state."""
        self._plain = False

    def until_next_s(self, pace: Pace, *, uploading: bool = False, plain: bool = False) -> float:
        """Return the system seconds until the stage may change by itself."""
        if self.deadline_s is None and self.draining_s is None:
            return float("inf")
        due_s = self._give_up_s() if self.draining_s is not None else self._drain_s(pace, uploading, plain)
        return (due_s - self.clock.monotonic()) / self.clock.scale

    def _drain_s(self, pace: Pace, uploading: bool, plain: bool) -> float:
        assert self.deadline_s is not None
        if plain and self.keeps_state:
            margin_s = max(LAST_WORD_S, (NOTICE_MARGIN_S + LAST_WORD_MIN_S) * self.clock.scale)
            return drain_moment(self.deadline_s, self._window_s, self.leaving_s, 0.0, margin_s)
        if plain:
            return self._kill_s() - min(TERMINATED_WITHIN_S, self._window_s / 2)
        commit_s = None if pace.commit_s is None else pace.commit_s + (pace.stall_s or 0.0)
        margin_s = (NOTICE_MARGIN_S + LAST_WORD_MIN_S) * self.clock.scale
        usual_s = drain_moment(self.deadline_s, self._window_s, commit_s, pace.step_s or 0.0, margin_s)
        left_s = self._give_up_s() - self.clock.monotonic()
        if final_snapshot_fits(left_s, pace.commit_s, uploading=uploading):
            return usual_s
        return max(usual_s, self.deadline_s - self._window_s * UPLOAD_ALONE_SHARE)

    @property
    def _window_s(self) -> float:
        assert self.deadline_s is not None
        return self.deadline_s - self.noticed_s

    def _kill_s(self) -> float:
        """Return when the agent ends a command that has not ended by itself."""
        assert self.deadline_s is not None
        return self.deadline_s - max(min(FILES_S, self._window_s / 6), LAST_WORD_MIN_S * self.clock.scale)

    def _give_up_s(self) -> float:
        if self.deadline_s is not None and self._plain:
            return self._kill_s()
        if self.deadline_s is not None:
            return self.deadline_s - max(LAST_WORD_S, LAST_WORD_MIN_S * self.clock.scale)
        assert self.draining_s is not None
        if self._plain:
            return self.draining_s + max(TERMINATED_WITHIN_S, TERMINATED_WITHIN_MIN_S * self.clock.scale)
        return self.draining_s + max(DRAIN_WITHIN_S, DRAIN_WITHIN_MIN_S * self.clock.scale)
