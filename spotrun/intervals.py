"""
Computes how often to make a checkpoint, and when to make the last one before a deadline. No function has side effects.
All durations are in run time.
"""

from __future__ import annotations

from datetime import timedelta
from math import expm1, sqrt

COMMIT_GAP = timedelta(seconds=30)
"""Minimum time between two commits, except for the final one (protocol 7)."""
INTERVAL_MAX = timedelta(minutes=10)
STALL_SHARE_MAX = 0.035
"""
Maximum share of the training time for which training is allowed to pause for checkpoints. The number is from CheckFreq
(FAST '21).
"""
MEAN_TIME_BETWEEN_INTERRUPTIONS = timedelta(hours=1)
"""
Mean time between interruptions that is assumed for a run without interruptions so far. In public traces, the median
lifetime of a spot instance is half an hour.
"""

WORK_PER_LOSS_MAX = 10
"""
Maximum length of work without checkpoints, as a multiple of the mean time between losses. At this length, fewer than
one try in 22,000 ends without a loss.
"""

DRAIN_SAFETY = 1.5
DRAIN_MARGIN_S = 5.0
"""
A margin, in seconds, for the last commit after a notice. Promise I5: no step is lost if the time from the notice to the
loss is longer than the sum of these 5 s and 1.5 times (DRAIN_SAFETY) the measured time of a save.
"""


def checkpoint_interval(stall: timedelta, mean_time_between_interruptions: timedelta) -> timedelta:
    """
    Return the interval between checkpoints that wastes the least time (Young 1974).

        interval = sqrt(2 * stall * mean_time_between_interruptions)

    `stall` is the time for which one checkpoint stops the training. The upload is not included, because training
    continues during it. The formula holds while `stall` is much smaller than the mean time between interruptions.
    """
    return timedelta(seconds=sqrt(2 * stall.total_seconds() * mean_time_between_interruptions.total_seconds()))


def auto_interval(
    stall: timedelta,
    mean_time_between_interruptions: timedelta = MEAN_TIME_BETWEEN_INTERRUPTIONS,
    saved: float = 0.0,
) -> timedelta:
    """
    Return Young's interval (see `checkpoint_interval`), but at most 10 min. If Young's interval is shorter than
    COMMIT_GAP, or so short that training would pause for more than 3.5% of the time, return a longer interval.

    `saved` (0 to 1) is the share of losses whose notice leaves time for one more commit. After such a loss no step is
    repeated, so it does not count as an interruption here.
    """
    undoing = mean_time_between_interruptions / max(1e-6, 1 - saved)
    best = checkpoint_interval(stall, undoing)
    return max(min(best, INTERVAL_MAX), stall / STALL_SHARE_MAX, COMMIT_GAP)


def expected_rework(work: timedelta, mean_time_between_interruptions: timedelta) -> timedelta | None:
    """
    Return the expected rework of a job without checkpoints. Such a job starts over after each loss, until it completes
    without one. `work` is the time that the job takes without losses.

    For random losses that are m apart on average, the expected rework is

        m * (e^(work / m) - 1) - work

    Return None if the work is more than WORK_PER_LOSS_MAX times as long as m.
    """
    ratio = work / mean_time_between_interruptions
    if ratio > WORK_PER_LOSS_MAX:
        return None
    return mean_time_between_interruptions * expm1(ratio) - work


def drain_moment(deadline_s: float, window_s: float, commit_s: float | None, step_s: float, margin_s: float) -> float:
    """
    Return the time at which to request the final snapshot, so that it becomes a commit before `deadline_s`.

        time = deadline - (1.5 * commit + 5 s + one step + margin)

    `commit_s` is the measured time from a snapshot to its commit. It is None if no commit was measured yet. In that
    case, half of `window_s`, the time from the notice to the deadline, is used instead of 1.5 * commit + 5 s. If the
    returned time has already passed, the caller should request the snapshot immediately.
    """
    reserve_s = window_s / 2 if commit_s is None else DRAIN_SAFETY * commit_s + DRAIN_MARGIN_S
    return deadline_s - reserve_s - step_s - margin_s
