"""Train once without interruption, once with kills, and compare."""

from __future__ import annotations

import random
from datetime import timedelta

import msgspec

from spotrun.errors import SpecInvalid
from spotrun.exactness.comparison import Difference, digest_of, first_difference
from spotrun.exactness.trace import Trace
from spotrun.spec.model import RunSpec
from spotrun.units import Steps
from spotrun.verify import job
from spotrun.verify.rehearsal import Killed, Rehearsal, Rehearsed, Watch
from spotrun.verify.sandbox import Sandbox


class KillPlan(msgspec.Struct, frozen=True, kw_only=True):
    """
    When to kill. `at` names the steps; if it is empty, `kills` steps are drawn with `seed`.

    `within` limits each training, in system time.
    """

    kills: int
    at: tuple[int, ...]
    seed: int
    within: timedelta


class Kill(Killed, frozen=True, kw_only=True):
    """And the step from which the next trainer continued; 0 is the beginning."""

    resumed_from: int


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    """sha256 over all weights, all optimizer states and all generators at the end."""

    weights: str
    optimizer: str
    rng: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """
    The result. `steps` are optimizer steps; `batches_redone` counts batches that were trained more than once.

    `resumes_from_checkpoint` counts the kills after which training continued from a checkpoint. If it is 0, every
    trainer began from the start, and no resume was compared.
    """

    identical: bool
    steps: int
    kills: tuple[Kill, ...]
    batches_redone: int
    resumes_from_checkpoint: int
    first_difference: Difference | None
    straight: Digests
    interrupted: Digests
    straight_s: float
    interrupted_s: float
    seed: int
    folder: str | None = None


def verify(spec: RunSpec, plan: KillPlan, sandbox: Sandbox, watch: Watch) -> Verification:
    """
    Train twice, one after the other, and find the first difference.

    Raises:
        SpecInvalid: `plan.at` names a step that the training does not have.
        SpotrunError: a training failed, or lasted longer than `plan.within`.
    """
    straight = Rehearsal(sandbox, job.straight(spec, sandbox.store), "straight").run(plan.within, watch)
    steps = straight.trace.steps
    disturbed = job.interrupted(spec, sandbox.store, checkpoint_every(steps))
    interrupted = Rehearsal(sandbox, disturbed, "interrupted", kill_steps(steps, plan)).run(plan.within, watch)
    return compare(straight, interrupted, plan.seed)


def kill_steps(steps: int, plan: KillPlan) -> list[int]:
    """
    The steps to kill a training of `steps` steps at, in order.

    Drawn steps lie in the last nine tenths, so that most have a checkpoint before them.
    """
    beyond = [step for step in plan.at if not 1 <= step <= steps]
    if beyond:
        raise SpecInvalid(
            f"--at {','.join(map(str, beyond))}: the training has the steps 1 to {steps}", hint="name steps within it"
        )
    if plan.at:
        return sorted(set(plan.at))
    choice = range(min(steps, steps // 10 + 2), steps + 1)
    return sorted(random.Random(plan.seed).sample(choice, min(plan.kills, len(choice))))


def checkpoint_every(steps: int) -> Steps:
    """An interval at which each kill loses some steps, but only a few."""
    return Steps(max(2, min(25, steps // 20)))


def compare(straight: Rehearsed, interrupted: Rehearsed, seed: int) -> Verification:
    difference = first_difference(straight.trace, interrupted.trace)
    kills = _with_resumes(interrupted.kills, interrupted.trace)
    return Verification(
        identical=difference is None,
        steps=straight.trace.steps,
        kills=kills,
        batches_redone=interrupted.trace.batches_redone(),
        resumes_from_checkpoint=sum(kill.resumed_from > 0 for kill in kills),
        first_difference=difference,
        straight=_digests(straight.trace),
        interrupted=_digests(interrupted.trace),
        straight_s=straight.duration_s,
        interrupted_s=interrupted.duration_s,
        seed=seed,
    )


def _with_resumes(kills: tuple[Killed, ...], trace: Trace) -> tuple[Kill, ...]:
    went_on = trace.resumed_after_holds()
    return tuple(
        Kill(step=kill.step, victim=kill.victim, resumed_from=step) for kill, step in zip(kills, went_on, strict=False)
    )


def _digests(trace: Trace) -> Digests:
    end = trace.ended[-1]
    return Digests(weights=digest_of(end.weights), optimizer=digest_of(end.optimizer), rng=digest_of(end.rng))
