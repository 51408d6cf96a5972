"""Trains a job once without interruption and once with kills, and compares the trainings."""

from __future__ import annotations

from itertools import chain

import msgspec

from spotrun.exactness import scope
from spotrun.exactness.causes import Evidence, likely_cause
from spotrun.exactness.comparison import MAY_VARY, differences, digest_of
from spotrun.exactness.difference import Difference, DifferenceKind, Differences, gathered
from spotrun.exactness.same_everywhere import Clean, without_instances
from spotrun.exactness.scope import ComparedCount, NotCompared
from spotrun.exactness.trace import Improved, Trace
from spotrun.run.events import Uncarried
from spotrun.spec.model import RunSpec
from spotrun.verify import job
from spotrun.verify.command import CommandVerification, is_command, verify_command
from spotrun.verify.kills import KillPlan, ResumedKill, checkpoint_every, planned, with_resumes
from spotrun.verify.left_files import LeftFiles
from spotrun.verify.rehearsal import Rehearsal, RehearsalResult, Watch, require_steps, require_worlds
from spotrun.verify.sandbox import Sandbox


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    """
    The sha256 of all weights, of all optimizer states, and of the states of all random number generators, at the end of
    a training.
    """

    weights: str
    optimizer: str
    rng: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """
    The result of a verification. `steps` are optimizer steps. `batches_redone` counts batches that were trained more
    than once.

    `compared` tells how many weights, metrics, files and so on were compared. `not_compared` names everything that was
    not compared, and to which `identical` therefore does not apply. `identical` is true if training continued from a
    checkpoint at least once, and nothing differs. `not_carried` names the state that training changed
    and that checkpoints do not contain, according to the interrupted run. `written_outside` names the files that the
    script wrote outside the work folder. Entries in the last two are not necessarily errors.

    `likely_cause` explains the first difference. `resumes_from_checkpoint` counts the kills after which training
    continued from a checkpoint. If it is 0, training started from the beginning after each kill, so the verification
    has tested no resume. `worlds` are the numbers of processes that trained between the kills; () if all were the same.
    """

    identical: bool
    steps: int
    kills: tuple[ResumedKill, ...]
    batches_redone: int
    resumes_from_checkpoint: int
    differences: Differences
    likely_cause: str | None
    compared: tuple[ComparedCount, ...]
    not_compared: tuple[NotCompared, ...]
    not_carried: tuple[Uncarried, ...]
    written_outside: tuple[str, ...]
    straight: Digests
    interrupted: Digests
    straight_s: float
    interrupted_s: float
    seed: int
    folder: str | None = None
    worlds: tuple[int, ...] = ()


def verify(spec: RunSpec, plan: KillPlan, sandbox: Sandbox, watch: Watch) -> Verification | CommandVerification:
    """
    Train twice, once without kills and once with them, and find the differences. For a training, compare each step. For
    a command, compare the files that it leaves behind.

    If all steps and weights are the same but something else differs, the job may not be deterministic. So train a third
    time, without kills, and ignore each value or file that differs between the two uninterrupted trainings.

    Raises:
        SpecInvalid: `plan.at` names a step that the training does not have, or names steps for a command.
        SpotrunError: a training failed, trained no step, or lasted longer than `plan.within`.
    """
    calm, worlds = job.straight(spec, sandbox.store), plan.worlds
    straight = Rehearsal(sandbox, calm, "uninterrupted", (), worlds[:1]).run(plan.within, watch)
    if is_command(spec, straight):
        return verify_command(spec, plan, sandbox, watch, straight)
    require_steps(straight, "uninterrupted")
    require_worlds(straight, worlds[:1])
    steps = straight.trace.steps
    improved = [record.step for record in straight.trace.all_of(Improved)]
    disturbed = job.interrupted(spec, sandbox.store, checkpoint_every(steps))
    kills = planned(steps, improved, plan)
    interrupted = Rehearsal(sandbox, disturbed, "interrupted", kills, worlds).run(plan.within, watch)
    require_steps(interrupted, "interrupted")
    require_worlds(interrupted, worlds)
    clean = without_instances(str(sandbox.instances))
    found = compare(straight, interrupted, plan.seed, clean, worlds=worlds)
    if found.differences.first is None or not MAY_VARY.issuperset(found.differences.counts):
        return found
    again = Rehearsal(sandbox, calm, "second uninterrupted", (), worlds[:1]).run(plan.within, watch)
    require_steps(again, "second uninterrupted")
    return compare(straight, interrupted, plan.seed, clean, again, worlds)


def compare(
    straight: RehearsalResult,
    interrupted: RehearsalResult,
    seed: int,
    clean: Clean,
    again: RehearsalResult | None = None,
    worlds: tuple[int, ...] = (),
) -> Verification:
    """
    Compare the trainings. `again` is a second uninterrupted training; None if none was needed. `worlds` are the numbers
    of processes, if they changed. A variable that has the number of processes is not compared.
    """
    ranks = None if again is None else again.ranks
    files = LeftFiles(straight, interrupted, clean, again)
    everything = list(differences(straight.ranks, interrupted.ranks, ranks))
    sizes = [each for each in everything if is_the_world(each, worlds)]
    others = (each for each in everything if not is_the_world(each, worlds))
    found = gathered(chain(others, files.differences()))
    kills = with_resumes(interrupted.kills, interrupted.trace)
    resumes = sum(kill.resumed_from > 0 for kill in kills)
    outside = scope.written_outside(straight.ranks, interrupted.ranks)
    names = [f"{one.place} ({one.what})" for one in interrupted.not_carried]
    cause = None
    if found.first is not None and worlds:
        cause = of_processes(found.first.kind)
    elif found.first is not None:
        cause = likely_cause(found.first, Evidence(resumes, names, outside, varies=again is None))
    return Verification(
        identical=found.first is None and resumes > 0,
        steps=straight.trace.steps,
        kills=kills,
        batches_redone=interrupted.trace.batches_redone(),
        resumes_from_checkpoint=resumes,
        differences=found,
        likely_cause=cause,
        compared=(*scope.compared(straight.ranks), *files.compared()),
        not_compared=(
            *(NotCompared(str(each.name), "it is the number of processes") for each in sizes),
            *scope.not_compared(straight.ranks, interrupted.ranks, ranks),
            *files.not_compared(),
        ),
        not_carried=interrupted.not_carried,
        written_outside=outside,
        straight=_digests(straight.trace),
        interrupted=_digests(interrupted.trace),
        straight_s=straight.duration_s,
        interrupted_s=interrupted.duration_s,
        seed=seed,
        worlds=worlds,
    )


_OF_PROCESSES = {
    DifferenceKind.SAMPLES: "the choice of samples depends on the rank or on the number of processes",
    DifferenceKind.DATA: (
        "the content of a micro-batch depends on the process that reads it: on its rank, or on a count, a cache or a "
        "generator that changes with each sample or micro-batch that it reads"
    ),
    DifferenceKind.LR: "the learning rate depends on the number of processes: reckon it from the virtual ranks",
}
_OF_ANY_PROCESSES = (
    "the training depends on the number of processes: on the rank or the world size, or on a count, a sum, a queue or "
    "a generator that changes in each micro-batch"
)


def of_processes(kind: DifferenceKind) -> str:
    """Return the likely cause if trainings with other numbers of processes differ first in something of this kind."""
    return _OF_PROCESSES.get(kind, _OF_ANY_PROCESSES)


def is_the_world(found: Difference, worlds: tuple[int, ...]) -> bool:
    """Return True if what differs is a variable with the number of processes that trained last."""
    if found.kind is not DifferenceKind.STATE or not worlds:
        return False
    return (found.straight, found.interrupted) == (str(worlds[0]), str(worlds[-1]))


def _digests(trace: Trace) -> Digests:
    end = trace.ended[-1]
    return Digests(weights=digest_of(end.weights), optimizer=digest_of(end.optimizer), rng=digest_of(end.rng))
