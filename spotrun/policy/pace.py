"""
Measures how long a run's steps take, from the reports of its agents.

A trainer's step number is known only at certain moments: at its first new step, at each of its snapshots, and at its
agent's last report. A *stretch* is the time between two such moments. The pace is measured over entire stretches, so it
also includes validation, checkpoints and slow periods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from math import sqrt

import msgspec

from spotrun.market.world import World
from spotrun.policy import assumptions
from spotrun.run.state import Attempt, RunState


class Pace(msgspec.Struct, frozen=True):
    """
    The seconds that a step takes. `doubt` is the possible error, as a share of these seconds. `steps` is the number of
    steps that were measured.
    """

    step_s: float
    doubt: float
    steps: int = 0


def any_attempt(attempt: Attempt) -> bool:
    return True


def measured_pace(state: RunState, world: World, counts: Callable[[Attempt], bool] = any_attempt) -> Pace | None:
    """
    Return the mean pace over all stretches of the attempts for which `counts` returns True. Return None if these
    attempts have too few steps.

    The result's `doubt` is twice the standard error of the mean, but at least WORK_DOUBT_MIN. If there are too few
    stretches to compute a standard error, `doubt` is WORK_DOUBT.
    """
    stretches = list(_stretches(state, world, counts))
    steps, seconds = sum(n for n, _ in stretches), sum(s for _, s in stretches)
    if steps < assumptions.STEPS_MIN or seconds <= 0:
        return None
    mean = seconds / steps
    if len(stretches) < assumptions.STRETCHES_MIN:
        return Pace(mean, assumptions.WORK_DOUBT, steps)
    spread = sqrt(sum(n * (s / n - mean) ** 2 for n, s in stretches) / steps)
    error = 2 * spread / mean / sqrt(len(stretches))
    return Pace(mean, max(error, assumptions.WORK_DOUBT_MIN), steps)


def _stretches(state: RunState, world: World, counts: Callable[[Attempt], bool]) -> Iterator[tuple[int, float]]:
    for marks in _marks(state, world, counts).values():
        for (step, at), (next_step, next_at) in pairwise(sorted(marks)):
            if next_step > step:
                yield next_step - step, max(0.0, (next_at - at).total_seconds())


def _marks(
    state: RunState, world: World, counts: Callable[[Attempt], bool]
) -> dict[tuple[int, int], list[tuple[int, datetime]]]:
    """
    Return, for each trainer that made a step, the known points of its progress as pairs (step, time of reaching it).
    Each key is the attempt's number and the trainer's incarnation.
    """
    found = {
        (attempt.number, trainer.incarnation): [(trainer.step + 1, trainer.started_at)]
        for attempt in state.attempts.values()
        for trainer in attempt.trainers
        if trainer.started_at is not None and counts(attempt)
    }
    for commit in state.commits:
        if (marks := found.get((commit.event.attempt, commit.event.incarnation))) is not None:
            marks.append((commit.event.step, commit.event.taken_at))
    seen = world.step_seen
    if seen is not None and seen.attempt in state.attempts and (trainers := state.attempts[seen.attempt].trainers):
        found.get((seen.attempt, trainers[-1].incarnation), []).append((seen.step, seen.at))
    return found
