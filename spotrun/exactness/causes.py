"""Finds the likely cause of the first difference between two trainings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotrun.exactness.difference import Difference, DifferenceKind


@dataclass(frozen=True)
class Evidence:
    """
    Facts besides the difference. `resumes` is the number of trainers that continued from a checkpoint. `not_carried`
    names changed state that the run reported as missing in its checkpoints. `written_outside` are files that the
    training wrote outside of its work folder. `varies` is False if two uninterrupted trainings are known to agree here.
    """

    resumes: int
    not_carried: Sequence[str] = ()
    written_outside: Sequence[str] = ()
    varies: bool = True


@dataclass(frozen=True)
class _Causes:
    """The meaning of a difference, its likely cause after a resume, and its likely cause in any two trainings."""

    seen: str
    after_resume: str
    by_itself: str


_CAUSES = {
    DifferenceKind.SAMPLES: _Causes(
        "the data order is not a function of seed and epoch",
        "a sampler goes by state of the script that no checkpoint holds",
        "a sampler draws from the clock, from the operating system, or from something that changed since the epoch "
        "began",
    ),
    DifferenceKind.DATA: _Causes(
        "the samples are the same and their content is not",
        "the dataset or a transform goes by state of the script that no checkpoint holds",
        "the dataset or a transform draws from the clock, from the operating system (random.SystemRandom, os.urandom), "
        "or from a generator of its own",
    ),
    DifferenceKind.LR: _Causes(
        "the learning rate does not follow from the steps alone",
        "a scheduler or hook counts in state of the script that no checkpoint holds",
        "a scheduler or hook reads the clock",
    ),
    DifferenceKind.LOSS: _Causes(
        "samples and learning rate are the same and the loss is not",
        "the step uses state of the script that no checkpoint holds (an iterator, a closure, an object of a library)",
        "random numbers drawn outside of the seeded generators (a torch.Generator of its own, random.SystemRandom, "
        "the clock)",
    ),
    DifferenceKind.RNG: _Causes(
        "the step drew more or fewer random numbers",
        "something in it goes by state of the script that no checkpoint holds",
        "something in it depends on the clock",
    ),
    DifferenceKind.STEPS: _Causes(
        "the trainings differ in length",
        "what ends them (EarlyStopping, a hook) goes by state that no checkpoint holds",
        "what ends them (max_time, a hook) depends on the clock",
    ),
    DifferenceKind.VALIDATION: _Causes(
        "the steps before it were the same and the validation is not",
        "it uses something that no checkpoint holds, or changes weights that a hook puts back",
        "it draws from the clock or the operating system",
    ),
    DifferenceKind.WEIGHTS: _Causes(
        "all steps were the same and the weights are not",
        "what changes them outside of training_step (a hook at the end, an averaging callback) goes by something that "
        "no checkpoint holds",
        "training_step returns no loss that could have shown it earlier",
    ),
    DifferenceKind.OPTIMIZER: _Causes(
        "all steps and the weights are the same and the optimizer's state is not",
        "it keeps something that its state_dict() does not save and load alike",
        "it keeps something that no step uses, such as a time",
    ),
    DifferenceKind.END_RNG: _Causes(
        "only the generators differ",
        "a hook at the end of fit() goes by something that no checkpoint holds",
        "a hook at the end of fit() draws a varying number of times",
    ),
    DifferenceKind.METRICS: _Causes(
        "all steps and the weights are the same and a metric at the end is not",
        "it is computed from something that no checkpoint holds",
        "it is computed from the clock",
    ),
    DifferenceKind.STATE: _Causes(
        "all steps and the weights are the same and this object is not",
        "no checkpoint holds it, or each process adds to what the checkpoint holds of it",
        "it depends on the clock, on the process or on how often something was done again",
    ),
    DifferenceKind.RESULTS: _Causes(
        "the training was the same and what came after it is not",
        "it uses a file or an object that is another one after a resume",
        "it draws from the clock",
    ),
    DifferenceKind.FILES: _Causes(
        "the training was the same and this file is not",
        "what writes it keeps rows that no checkpoint holds, it is copied from outside of the work folder, or another "
        "process writes it",
        "it holds a time, a name of the process or how often something was done again",
    ),
}
_SET = "torch.use_deterministic_algorithms(True) and OMP_NUM_THREADS=1"
_KERNELS = f"kernels and threads that are not deterministic (try {_SET})"
_COMPUTED = frozenset({DifferenceKind.LOSS, DifferenceKind.VALIDATION, DifferenceKind.WEIGHTS})
"""Differences that nondeterministic kernels may cause."""
NAMED_MAX = 5


def likely_cause(found: Difference, evidence: Evidence) -> str:
    """
    Return the likely cause in words, reported facts first.

    A cause that would make any two trainings differ is excluded if the batch was the same before the kill.
    Nondeterministic kernels are excluded if everything before a resume was the same.
    """
    causes = _CAUSES[found.kind]
    by_itself = causes.by_itself
    if not found.resumed or not evidence.resumes:
        by_itself += f", or {_KERNELS}" if found.kind in _COMPUTED else ""
    if not found.resumed:
        since = "it differed before any interruption, so two runs of the script differ without spotrun too"
        return f"{causes.seen}: {by_itself}; {since}"
    named = _named(evidence)
    if not evidence.resumes:
        left = named or ["the second start found what the first one had left"]
        end = f"; or {by_itself}" if evidence.varies else ""
        return f"{causes.seen}, and no trainer began at a checkpoint: {'; '.join(left)}{end}"
    if found.trained_before or not evidence.varies:
        seen = f"{causes.seen}, though it was before the kill" if found.trained_before else causes.seen
        parts = [*named, causes.after_resume]
    else:
        seen, parts = causes.seen, [*named, causes.after_resume, f"or {by_itself}"]
    return f"{seen}: {'; '.join(parts)}" + ("" if named else f"; {_OUTSIDE}")


_OUTSIDE = "files outside of the work folder are not carried either"


def _named(evidence: Evidence) -> list[str]:
    found = []
    if evidence.not_carried:
        found.append(f"the run named what has changed and is in no checkpoint: {_listed(evidence.not_carried)}")
    if evidence.written_outside:
        found.append(
            "the training wrote outside of the work folder, which no checkpoint carries: "
            + _listed(evidence.written_outside)
        )
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
