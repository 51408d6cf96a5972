"""Train once without interruption, once with kills, and compare."""

from __future__ import annotations

import msgspec

from spotrun.exactness import folders, scope
from spotrun.exactness.comparison import digest_of, first_difference_of_ranks, varying_files
from spotrun.exactness.difference import Difference, DifferenceKind, difference
from spotrun.exactness.same_everywhere import Clean, without_instances
from spotrun.exactness.scope import Compared, NotCompared
from spotrun.exactness.trace import Improved, Trace
from spotrun.spec.model import RunSpec
from spotrun.verify import job
from spotrun.verify.kills import Kill, KillPlan, checkpoint_every, planned, with_resumes
from spotrun.verify.rehearsal import Rehearsal, Rehearsed, Watch
from spotrun.verify.sandbox import Sandbox


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    """sha256 over all weights, all optimizer states and all generators at the end."""

    weights: str
    optimizer: str
    rng: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """
    The result. `steps` are optimizer steps; `batches_redone` counts batches that were trained more than once.

    `compared` says of what the two trainings are `identical`, and `not_compared` names what may differ all the same.
    `resumes_from_checkpoint` counts the kills after which training continued from a checkpoint. If it is 0, every
    trainer began from the start, and no resume was compared.
    """

    identical: bool
    steps: int
    kills: tuple[Kill, ...]
    batches_redone: int
    resumes_from_checkpoint: int
    first_difference: Difference | None
    compared: tuple[Compared, ...]
    not_compared: tuple[NotCompared, ...]
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
    improved = [record.step for record in straight.trace.all_of(Improved)]
    disturbed = job.interrupted(spec, sandbox.store, checkpoint_every(steps))
    kills = planned(steps, improved, plan)
    interrupted = Rehearsal(sandbox, disturbed, "interrupted", kills).run(plan.within, watch)
    return compare(straight, interrupted, plan.seed, without_instances(str(sandbox.instances)))


def compare(straight: Rehearsed, interrupted: Rehearsed, seed: int, clean: Clean) -> Verification:
    files = _Files(straight, interrupted, clean)
    found = first_difference_of_ranks(straight.ranks, interrupted.ranks) or files.first_difference()
    kills = with_resumes(interrupted.kills, interrupted.trace)
    return Verification(
        identical=found is None,
        steps=straight.trace.steps,
        kills=kills,
        batches_redone=interrupted.trace.batches_redone(),
        resumes_from_checkpoint=sum(kill.resumed_from > 0 for kill in kills),
        first_difference=found,
        compared=(*scope.compared(straight.ranks), *files.compared()),
        not_compared=(*scope.not_compared(straight.ranks, interrupted.ranks), *files.not_compared()),
        straight=_digests(straight.trace),
        interrupted=_digests(interrupted.trace),
        straight_s=straight.duration_s,
        interrupted_s=interrupted.duration_s,
        seed=seed,
    )


class _Files:
    """Those of the two work folders, as the last instances have left them."""

    def __init__(self, straight: Rehearsed, interrupted: Rehearsed, clean: Clean) -> None:
        self._folders = straight.work, interrupted.work
        self._refused = straight.refused | interrupted.refused
        self._clean = clean
        names = folders.names_of(straight.work.paths | interrupted.work.paths)
        varying = frozenset[str]()
        for rank in straight.ranks.keys() & interrupted.ranks.keys():
            varying |= varying_files(straight.ranks[rank], interrupted.ranks[rank])
        self._trackers = {name: tracker for name in names if (tracker := folders.tracker_of(name)) is not None}
        self._names = names - varying - self._trackers.keys() - self._refused.keys()

    def first_difference(self) -> Difference | None:
        found = folders.first_difference(*self._folders, self._names, self._clean)
        if found is None:
            return None
        where = found.where or None
        return difference(DifferenceKind.FILES, found.straight, found.interrupted, name=found.path, where=where)

    def compared(self) -> list[Compared]:
        return [Compared("files", len(self._names))] if self._names else []

    def not_compared(self) -> list[NotCompared]:
        why = {name: f"{tracker} files name each run" for name, tracker in self._trackers.items()}
        return [NotCompared(f"file {name}", reason) for name, reason in sorted((why | self._refused).items())]


def _digests(trace: Trace) -> Digests:
    end = trace.ended[-1]
    return Digests(weights=digest_of(end.weights), optimizer=digest_of(end.optimizer), rng=digest_of(end.rng))
