"""Measures how fast training and saving are, and computes when the next snapshot is due. All times are run time."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from statistics import median
from typing import Literal

from msgspec.structs import replace

from spotrun.agent.decisions import SnapshotFacts, snapshot_due
from spotrun.intervals import COMMIT_GAP, auto_interval
from spotrun.market.hazard import Hazard
from spotrun.trainer_link import Progress, Why
from spotrun.units import Steps

STEPS_REMEMBERED = 50
SMOOTHING = 0.4
"""
Weight of the newest measurement in an average. Older measurements lose weight with each new one, because upload times
change: they depend on how much other machines use the same host and network.
"""
FIRST_STALL = timedelta(seconds=1)
"""The stall (pause of the training for one snapshot) that is assumed until a stall has been measured."""

Every = Literal["auto"] | timedelta | Steps


class Pace:
    """
    The pace of one attempt. `every` is the job's `checkpoint.every`. `committed_s` is the monotonic time of the run's
    newest commit; None if the run has no commit. `hazard` is the run's hazard at `began_s`, when the attempt began.
    """

    def __init__(
        self, every: Every, committed_s: float | None, hazard: Hazard | None = None, began_s: float = 0.0
    ) -> None:
        self._every = every
        self._hazard = hazard or Hazard()
        self._began_s = began_s
        self._committed_s = committed_s
        self._snapshot_s: float | None = None
        self._steps: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._last: tuple[int, float] | None = None
        self._epoch_step: int | None = None
        self._rebalance = False
        self.stall_s: float | None = None
        self.commit_s: float | None = None

    @property
    def step_s(self) -> float | None:
        """The median time of a step."""
        return median(self._steps) if self._steps else None

    def new_trainer(self) -> None:
        self._snapshot_s = self._epoch_step = None
        self._last = None

    def progressed(self, at: Progress, at_s: float) -> None:
        if self._last is not None and at.phase == "train" and at.step > self._last[0]:
            self._steps.append((at_s - self._last[1]) / (at.step - self._last[0]))
        self._last = (at.step, at_s)

    def epoch_ended(self, step: int) -> None:
        self._epoch_step = step

    def rebalance(self) -> None:
        self._rebalance = True

    def unwarned(self) -> None:
        """
        Take snapshots more often from now on, because notices can no longer be received. So the cloud may take the
        instance without warning, before a final commit.
        """
        self._hazard = replace(self._hazard, saved=0.0)

    def snapshot(self, step: int, stall_s: float, at_s: float) -> None:
        self._snapshot_s = at_s
        self._rebalance = False
        self.stall_s = _smoothed(self.stall_s, stall_s)
        if self._epoch_step is not None and step >= self._epoch_step:
            self._epoch_step = None

    def frozen(self, at_s: float) -> None:
        """Record that the agent copied a command's state while the command continued."""
        self._snapshot_s = at_s
        self._rebalance = False

    def dropped(self) -> None:
        """Record that the newest copy did not become a commit. Another copy is due immediately."""
        self._snapshot_s = None

    def committed(self, took_s: float, at_s: float) -> None:
        self._committed_s = at_s
        self.commit_s = _smoothed(self.commit_s, took_s)

    def too_soon(self, now_s: float) -> bool:
        """
        Return True if the newest commit is so recent that no snapshot except a final one is allowed to become a commit
        now.
        """
        return self.held_s(now_s) > 0

    def held_s(self, now_s: float) -> float:
        """Return how many seconds a snapshot has to wait until it is allowed to become a commit, unless it is final."""
        since_s = None if self._committed_s is None else now_s - self._committed_s
        return 0.0 if since_s is None else max(0.0, COMMIT_GAP.total_seconds() - since_s)

    @property
    def every_steps(self) -> int | None:
        """
        The number of steps between two snapshots; None if snapshots are due by time. If the job's `checkpoint.every` is
        in steps, the trainer counts them, and takes each snapshot without being asked.
        """
        return self._every.count if isinstance(self._every, Steps) else None

    def interval_s(self, now_s: float) -> float | None:
        """
        Return the seconds between two snapshots. Return None if the job's `checkpoint.every` is in steps: then the
        trainer itself decides when to take them.
        """
        if isinstance(self._every, Steps):
            return None
        if isinstance(self._every, timedelta):
            return self._every.total_seconds()
        stall = FIRST_STALL if self.stall_s is None else timedelta(seconds=self.stall_s)
        mean_time_between = self._hazard.after(timedelta(seconds=now_s - self._began_s))
        return auto_interval(stall, mean_time_between, self._hazard.saved).total_seconds()

    def snapshot_due(self, now_s: float) -> Why | None:
        facts = SnapshotFacts(
            since_commit_s=None if self._committed_s is None else now_s - self._committed_s,
            since_snapshot_s=None if self._snapshot_s is None else now_s - self._snapshot_s,
            interval_s=self.interval_s(now_s),
            epoch_ended=self._epoch_step is not None,
            rebalance=self._rebalance,
        )
        return snapshot_due(facts, COMMIT_GAP.total_seconds())


def _smoothed(before: float | None, measured: float) -> float:
    return measured if before is None else before + SMOOTHING * (measured - before)
