"""
Measures the duration of a run's steps, from the reports of its agents.

A *stretch* lies between two times at which the step of one trainer is known: its first new step, each of its
snapshots, and the last report of its agent. So the pace includes validation, checkpoints and slow spells.
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
    """Seconds per step, their possible error as a share, and the number of `steps` from which they were measured."""

    step_s: float
    doubt: float
    steps: int = 0


def any_attempt(attempt: Attempt) -> bool:
    return True


def measured_pace(state: RunState, world: World, counts: Callable[[Attempt], bool] = any_attempt) -> Pace | None:
    """
    Return the mean pace over all stretches of the attempts that `counts` selects; None if there are too few steps.

    Its doubt is twice the standard error of the mean, within the assumed bounds.
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
    """Return the known (step, time) pairs of each trainer that made a step, by attempt and incarnation."""
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
