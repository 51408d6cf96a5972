"""Finds the likely cause of the first difference between two trainings. No function has side effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotrun.exactness.difference import Difference, DifferenceKind


@dataclass(frozen=True)
class Evidence:
    """
    Facts that help to find the cause of a difference. `resumes` is the number of trainers that continued from a
    checkpoint. `not_carried` names the script's objects that changed during the training and are in no checkpoint,
    according to the run. `written_outside` are the files that the training wrote outside its work folder. `varies` is
    False if the object in question was the same in two uninterrupted trainings, so it does not vary by itself.
    """

    resumes: int
    not_carried: Sequence[str] = ()
    written_outside: Sequence[str] = ()
    varies: bool = True


@dataclass(frozen=True)
class _Causes:
    """
    Texts about one kind of difference. `seen` says what differs. `after_resume` is the likely cause if the training was
    resumed before the difference. `by_itself` is the likely cause if trainings of the script differ even without an
    interruption.
    """

    seen: str
    after_resume: str
    by_itself: str


_CAUSES = {
    DifferenceKind.SAMPLES: _Causes(
        "the data order is not a function of seed and epoch",
        "a sampler depends on state of the script that no checkpoint holds",
        "a sampler depends on the clock, on the operating system, or on something that changed since the epoch began",
    ),
    DifferenceKind.DATA: _Causes(
        "the content of this batch differs",
        "the dataset, a transform or the collate function depends on state of the script that no checkpoint holds, "
        "such as a cache that a loader's worker fills",
        "the dataset, a transform or the collate function depends on the clock, on the operating system "
        "(random.SystemRandom, os.urandom), or on a separate generator",
    ),
    DifferenceKind.LR: _Causes(
        "the learning rate does not depend on the steps alone",
        "a scheduler or hook keeps a count in state of the script that no checkpoint holds",
        "a scheduler or hook reads the clock",
    ),
    DifferenceKind.LOSS: _Causes(
        "samples and learning rate are the same, but the loss differs",
        "the step uses state of the script that no checkpoint holds (an iterator, a closure, an object of a library)",
        "random numbers come from outside the seeded generators (a separate torch.Generator, random.SystemRandom, "
        "the clock)",
    ),
    DifferenceKind.RNG: _Causes(
        "the step drew more or fewer random numbers",
        "something in the step depends on state of the script that no checkpoint holds",
        "something in the step depends on the clock",
    ),
    DifferenceKind.STEPS: _Causes(
        "the trainings differ in length",
        "what ends them (EarlyStopping, a hook) depends on state that no checkpoint holds",
        "what ends them (max_time, a hook) depends on the clock",
    ),
    DifferenceKind.VALIDATION: _Causes(
        "the steps before the validation are the same, but the validation differs",
        "the validation uses something that no checkpoint holds, or changes weights that a hook puts back",
        "the validation depends on the clock or the operating system",
    ),
    DifferenceKind.WEIGHTS: _Causes(
        "each batch, learning rate and known loss is the same, but the weights differ",
        "a step, or what else changes the weights (a hook at the end, an averaging callback), depends on something "
        "that no checkpoint holds; which step differs first is not known if training_step returns no loss, or the "
        "loop is your own",
        "a step whose loss is not known draws from a generator without a seed, or depends on the clock",
    ),
    DifferenceKind.OPTIMIZER: _Causes(
        "all steps and the weights are the same, but the optimizer's state differs",
        "the optimizer keeps something that its state_dict() and load_state_dict() do not preserve",
        "the optimizer keeps something that no step uses, such as a time",
    ),
    DifferenceKind.END_RNG: _Causes(
        "only the generators differ",
        "a hook at the end of fit() depends on something that no checkpoint holds",
        "a hook at the end of fit() draws a varying number of random numbers",
    ),
    DifferenceKind.METRICS: _Causes(
        "all steps and the weights are the same, but a metric at the end differs",
        "the metric is computed from something that no checkpoint holds",
        "the metric is computed from the clock",
    ),
    DifferenceKind.STATE: _Causes(
        "all steps and the weights are the same, but this object differs",
        "no checkpoint holds the object, or each process adds to the object's saved content",
        "the object depends on the clock, on the process or on how often something was repeated",
    ),
    DifferenceKind.RESULTS: _Causes(
        "the training is the same, but what came after it differs",
        "what came after it uses a file or an object that is a different one after a resume",
        "what came after it depends on the clock",
    ),
    DifferenceKind.FILES: _Causes(
        "the training is the same, but this file differs",
        "its writer keeps rows that no checkpoint holds, it is copied from outside the work folder, or another "
        "process writes it",
        "it holds a time, the process's name, or how often something was repeated",
    ),
}
_SET = "torch.use_deterministic_algorithms(True) and OMP_NUM_THREADS=1"
_KERNELS = f"kernels and threads that are not deterministic (try {_SET})"
_COMPUTED = frozenset({DifferenceKind.LOSS, DifferenceKind.VALIDATION, DifferenceKind.WEIGHTS})
"""Kinds of differences that nondeterministic kernels may cause."""
NAMED_MAX = 5


def likely_cause(found: Difference, evidence: Evidence) -> str:
    """
    Return the likely causes in words, the most likely one first: what the run itself reported, then what is usual for
    this kind of difference, and last the files that a training wrote outside its work folder, which most trainings do.

    Causes that do not fit the evidence are left out. If the interrupted training had trained the same batch without a
    difference before it was killed, causes that would make any two trainings differ are ruled out. If the trainings
    differ only after a resume, nondeterministic kernels are ruled out.
    """
    causes = _CAUSES[found.kind]
    by_itself = causes.by_itself
    if not found.resumed or not evidence.resumes:
        by_itself += f", or {_KERNELS}" if found.kind in _COMPUTED else ""
    if not found.resumed:
        since = "the difference is before any interruption, so two runs differ without one, too"
        return f"{causes.seen}: {'; '.join([*_named(evidence), by_itself])}; {since}"
    named = _named(evidence)
    if not evidence.resumes:
        left = named or ["the second start found what the first start had left"]
        left += _outside(evidence) if evidence.written_outside else []
        end = f"; or {by_itself}" if evidence.varies else ""
        return f"{causes.seen}, and no trainer began from a checkpoint: {'; '.join(left)}{end}"
    if found.trained_before or not evidence.varies:
        seen = f"{causes.seen}, although it was the same before the kill" if found.trained_before else causes.seen
        parts = [*named, causes.after_resume]
    else:
        seen, parts = causes.seen, [*named, causes.after_resume, f"or {by_itself}"]
    return f"{seen}: {'; '.join([*parts, *_outside(evidence)])}"


def _named(evidence: Evidence) -> list[str]:
    if not evidence.not_carried:
        return []
    return [f"as the run reported, this has changed and is in no checkpoint: {_listed(evidence.not_carried)}"]


def _outside(evidence: Evidence) -> list[str]:
    said = "checkpoints do not hold files outside the work folder either"
    if evidence.written_outside:
        return [f"{said}, and the training wrote {_listed(evidence.written_outside)}"]
    return [] if evidence.not_carried else [said]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
