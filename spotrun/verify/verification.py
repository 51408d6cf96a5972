"""Train once without interruption, once with kills, and compare."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import msgspec

from spotrun.exactness import folders, scope
from spotrun.exactness.causes import Evidence, likely_cause
from spotrun.exactness.comparison import differences, digest_of, varying_files
from spotrun.exactness.difference import Difference, DifferenceKind, Differences, difference, gathered
from spotrun.exactness.same_everywhere import Clean, without_instances
from spotrun.exactness.scope import Compared, NotCompared
from spotrun.exactness.trace import Improved, Trace
from spotrun.run.events import Uncarried
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
    `not_carried` is what the interrupted run named as changed and in no checkpoint, and `written_outside` has the files
    that were written outside of the work folder: neither has to matter. `likely_cause` is that of the first difference.
    `resumes_from_checkpoint` counts the kills after which training continued from a checkpoint. If it is 0, every
    trainer began from the start, and no resume was compared.
    """

    identical: bool
    steps: int
    kills: tuple[Kill, ...]
    batches_redone: int
    resumes_from_checkpoint: int
    differences: Differences
    likely_cause: str | None
    compared: tuple[Compared, ...]
    not_compared: tuple[NotCompared, ...]
    not_carried: tuple[Uncarried, ...]
    written_outside: tuple[str, ...]
    straight: Digests
    interrupted: Digests
    straight_s: float
    interrupted_s: float
    seed: int
    folder: str | None = None


def verify(spec: RunSpec, plan: KillPlan, sandbox: Sandbox, watch: Watch) -> Verification:
    """
    Train twice, one after the other, and find the differences.

    Raises:
        SpecInvalid: `plan.at` names a step that the training does not have.
        SpotrunError: a training failed, did no step, or lasted longer than `plan.within`.
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
    found = gathered(chain(differences(straight.ranks, interrupted.ranks), files.differences()))
    kills = with_resumes(interrupted.kills, interrupted.trace)
    resumes = sum(kill.resumed_from > 0 for kill in kills)
    outside = scope.written_outside(straight.ranks, interrupted.ranks)
    names = [f"{one.place} ({one.what})" for one in interrupted.not_carried]
    evidence = Evidence(resumes, names, outside)
    return Verification(
        identical=found.first is None,
        steps=straight.trace.steps,
        kills=kills,
        batches_redone=interrupted.trace.batches_redone(),
        resumes_from_checkpoint=resumes,
        differences=found,
        likely_cause=None if found.first is None else likely_cause(found.first, evidence),
        compared=(*scope.compared(straight.ranks), *files.compared()),
        not_compared=(*scope.not_compared(straight.ranks, interrupted.ranks), *files.not_compared()),
        not_carried=interrupted.not_carried,
        written_outside=outside,
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
        names -= self._trackers.keys() | self._refused.keys()
        # A logger may have had a line in its buffer when they were looked at: what is the same in the end is compared.
        self._varying = {found.path for found in folders.differences(*self._folders, names & varying, clean)}
        self._names = names - self._varying

    def differences(self) -> Iterator[Difference]:
        for found in folders.differences(*self._folders, self._names, self._clean):
            where = found.where or None
            yield difference(DifferenceKind.FILES, found.straight, found.interrupted, name=found.path, where=where)

    def compared(self) -> list[Compared]:
        return [Compared("files", len(self._names))] if self._names else []

    def not_compared(self) -> list[NotCompared]:
        why = {name: f"{tracker} files name each run" for name, tracker in self._trackers.items()}
        why |= dict.fromkeys(self._varying, scope.VARIES) | self._refused
        return [NotCompared(f"file {name}", reason) for name, reason in sorted(why.items())]


def _digests(trace: Trace) -> Digests:
    end = trace.ended[-1]
    return Digests(weights=digest_of(end.weights), optimizer=digest_of(end.optimizer), rng=digest_of(end.rng))
