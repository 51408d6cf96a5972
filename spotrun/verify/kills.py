"""
Chooses the steps at which a verification kills the training, and records the steps from which the training resumed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from spotrun.errors import SpecInvalid
from spotrun.exactness.trace import Trace
from spotrun.spec.model import RunSpec
from spotrun.units import Steps

VICTIMS = ("instance", "trainer")
"""Targets of a kill: all processes on the machine, or only the trainer. Successive kills alternate between the two."""
DURABLE_STEPS = 10
"""Number of steps after which a checkpoint with a metric's new best value is assumed to be durable."""


class KillPlan(msgspec.Struct, frozen=True, kw_only=True):
    """
    The kills that the user requests.

    The training is killed after each step in `at`. If `at` is empty, it is killed `kills` times: after random steps,
    drawn with `seed`, and once soon after the best value of a metric. `within` is the maximum duration of each
    training, in system time.

    `worlds` are the numbers of processes that train before the first kill, after it, and so on; () for a training whose
    number of processes does not change.
    """

    kills: int
    at: tuple[int, ...]
    seed: int
    within: timedelta
    worlds: tuple[int, ...] = ()


class PlannedKill(msgspec.Struct, frozen=True, kw_only=True):
    """A kill after optimizer step `step`."""

    step: int
    victim: str


class ResumedKill(PlannedKill, frozen=True, kw_only=True):
    """A kill, and the step from which the next trainer continued; 0 if it trained from the beginning."""

    resumed_from: int


def require_worlds_fit(spec: RunSpec, plan: KillPlan) -> None:
    """
    Check that the job can train with the numbers of processes in `plan.worlds`, one after another.

    Raises:
        SpecInvalid: the job is not elastic, a number does not fit it, or there is no kill between two numbers.
    """
    if not (worlds := plan.worlds):
        return
    most = max(worlds)
    if spec.virtual_ranks is None:
        raise SpecInvalid(
            "--worlds changes the number of processes, and the job is not elastic",
            hint=f"add elastic: {{virtual_ranks: {most}}}, and see docs/elastic.md for what the script needs",
        )
    if spec.num_nodes > 1:
        raise SpecInvalid(
            "--worlds changes the processes on one instance, and the job has several nodes", hint="write num_nodes: 1"
        )
    if most > spec.virtual_ranks:
        raise SpecInvalid(
            f"--worlds {most}: {most} processes cannot share {spec.virtual_ranks} virtual ranks",
            hint="give smaller numbers, or write more elastic.virtual_ranks",
        )
    if len(worlds) < 2:
        raise SpecInvalid("--worlds needs at least two numbers of processes", hint="write it like --worlds 4,3,2,1,4")
    if plan.at and len(plan.at) != len(worlds) - 1:
        raise SpecInvalid(
            f"--at has {len(plan.at)} steps, and --worlds changes the processes {len(worlds) - 1} times",
            hint="give a step for each change",
        )


def planned(steps: int, improved: Sequence[int], plan: KillPlan) -> list[PlannedKill]:
    """
    Return the kills of a training of `steps` steps, in order. `improved` are the steps at which a callback found a new
    best value of a metric.

    At a new best value, scripts often write files, such as the best model. The next instance has these files only if a
    checkpoint restores them. To test this, one kill ends the instance soon after the last best value that is not too
    close to the end of the training. If the user names the steps, there is no such kill.
    """
    drawn = kill_steps(steps, plan)
    if plan.worlds:  # each kill has to bring an instance of another size
        return [PlannedKill(step=step, victim="instance") for step in drawn]
    best = None if plan.at else _after_best(steps, improved)
    if best is not None and best not in drawn:
        nearest = min(drawn, key=lambda step: abs(step - best))
        drawn = sorted({*drawn, best} - {nearest})
    victims = {step: VICTIMS[number % len(VICTIMS)] for number, step in enumerate(drawn)}
    if best is not None:
        victims[best] = "instance"
    return [PlannedKill(step=step, victim=victims[step]) for step in drawn]


def _after_best(steps: int, improved: Sequence[int]) -> int | None:
    lead = max(DURABLE_STEPS, checkpoint_every(steps).count + 1)
    before_end = [step for step in improved if 0 < step < steps]
    whole = [step for step in before_end if step + lead <= steps]
    return whole[-1] + lead if whole else steps if before_end else None


def kill_steps(steps: int, plan: KillPlan) -> list[int]:
    """
    Return the steps at which a training of `steps` steps is killed, in order.

    Steps that are drawn at random are in the last nine tenths of the training, so that there is a checkpoint before
    most kills.
    """
    beyond = [step for step in plan.at if not 1 <= step <= steps]
    if beyond:
        raise SpecInvalid(
            f"--at {','.join(map(str, beyond))}: the training has only steps 1 to {steps}",
            hint="choose steps in this range",
        )
    if plan.at:
        return sorted(set(plan.at))
    choice = range(min(steps, steps // 10 + 2), steps + 1)
    return sorted(random.Random(plan.seed).sample(choice, min(plan.kills, len(choice))))


def checkpoint_every(steps: int) -> Steps:
    """Return an interval between checkpoints that makes each kill lose a few steps."""
    return Steps(max(2, min(25, steps // 20)))


def with_resumes(kills: Sequence[PlannedKill], trace: Trace) -> tuple[ResumedKill, ...]:
    went_on = trace.resumed_after_holds()
    return tuple(
        ResumedKill(step=kill.step, victim=kill.victim, resumed_from=step)
        for kill, step in zip(kills, went_on, strict=False)
    )
