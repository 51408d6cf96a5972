"""A difference between two trainings of one script, and its likely cause."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec


class DifferenceKind(StrEnum):
    """What can differ, in the order of cause and effect: within a step, after it, at the end, and after that."""

    SAMPLES = "samples"
    DATA = "data"
    LR = "lr"
    LOSS = "loss"
    RNG = "rng"
    STEPS = "steps"
    VALIDATION = "validation"
    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    END_RNG = "end_rng"
    METRICS = "metrics"
    STATE = "state"
    RESULTS = "results"
    FILES = "files"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """
    The first difference between a straight (never interrupted) and an interrupted training.

    `epoch`, `batch` (both from 0) and `step` are None if all steps were the same and only the ends differ. `name` is
    the weight, the part of an optimizer, the generator, the metric, the place of an object or the path of a file, and
    `where` a part of that. `rank` is the process that it is of, None if there is only one. `resumed` is False if the
    trainings differed before anything was interrupted.
    """

    kind: DifferenceKind
    straight: str
    interrupted: str
    likely_cause: str
    resumed: bool
    epoch: int | None = None
    batch: int | None = None
    step: int | None = None
    name: str | None = None
    where: str | None = None
    rank: int | None = None


_CAUSES: dict[DifferenceKind, str] = {
    DifferenceKind.SAMPLES: (
        "the data order is not a function of seed and epoch: a sampler draws from the clock, from the operating "
        "system, or from something that changed since the epoch began"
    ),
    DifferenceKind.DATA: (
        "the samples are the same and their content is not: the dataset or a transform draws from the clock, from the "
        "operating system (random.SystemRandom, os.urandom), or from a generator of its own"
    ),
    DifferenceKind.LR: (
        "the learning rate does not follow from the steps alone: a scheduler or hook looks at the clock, or counts in "
        "a variable that no checkpoint holds"
    ),
    DifferenceKind.LOSS: (
        "samples and learning rate are the same and the loss is not: random numbers drawn outside of the seeded "
        "generators (a torch.Generator of its own, random.SystemRandom, the clock), or kernels and threads that are "
        "not deterministic (try torch.use_deterministic_algorithms(True) and OMP_NUM_THREADS=1)"
    ),
    DifferenceKind.RNG: (
        "the step drew more or fewer random numbers: something in it depends on the clock or on what happened in the "
        "process before"
    ),
    DifferenceKind.STEPS: (
        "the trainings differ in length: what ends them (EarlyStopping, max_time, a hook) depends on the clock, or on "
        "state that no checkpoint holds"
    ),
    DifferenceKind.VALIDATION: (
        "the steps before it were the same and the validation is not: it uses something that no checkpoint holds, "
        "draws from the clock or the operating system, or changes weights that a hook puts back"
    ),
    DifferenceKind.WEIGHTS: (
        "all steps were the same and the weights are not: something changes them outside of training_step (a hook at "
        "the end, an averaging callback), or training_step returns no loss that could have shown it earlier"
    ),
    DifferenceKind.OPTIMIZER: (
        "all steps and the weights are the same and the optimizer's state is not: it keeps something that its "
        "state_dict() does not save and load alike"
    ),
    DifferenceKind.END_RNG: "only the generators differ: a hook at the end of fit() draws a varying number of times",
    DifferenceKind.METRICS: (
        "all steps and the weights are the same and a metric at the end is not: it is computed from something that no "
        "checkpoint holds, or from the clock"
    ),
    DifferenceKind.STATE: (
        "all steps and the weights are the same and this object is not: no checkpoint holds it, or it depends on the "
        "clock, on the process or on how often something was done again"
    ),
    DifferenceKind.RESULTS: (
        "the training was the same and what came after it is not: it uses a file or an object that is another one "
        "after a resume, or draws from the clock"
    ),
    DifferenceKind.FILES: (
        "the training was the same and this file is not: it is written outside of the work folder and copied, by "
        "another process, or holds a time, a name of the process or how often something was done again"
    ),
}
_AFTER_RESUME = (
    "; or state of the script that no checkpoint holds (an iterator, a closure, an object of a library; the script's "
    "output names what was seen to change)"
)
_ON_ITS_OWN = "; it differed before any interruption, so two runs of the script differ without spotrun's doing too"
_STATEFUL = frozenset({DifferenceKind.DATA, DifferenceKind.LR, DifferenceKind.LOSS, DifferenceKind.RNG})


def difference(
    kind: DifferenceKind, straight: str, interrupted: str, *, resumed: bool = True, **place: Any
) -> Difference:
    """With its likely cause."""
    also = _ON_ITS_OWN if not resumed else _AFTER_RESUME if kind in _STATEFUL else ""
    cause = _CAUSES[kind] + also
    return Difference(
        kind=kind, straight=straight, interrupted=interrupted, likely_cause=cause, resumed=resumed, **place
    )


def of_parts(
    kind: DifferenceKind, straight: Mapping[str, str], interrupted: Mapping[str, str], **place: Any
) -> Difference | None:
    """Of what has names: the first that is not the same in both."""
    names = [*straight, *(name for name in interrupted if name not in straight)]
    name = next((name for name in names if straight.get(name) != interrupted.get(name)), None)
    if name is None:
        return None
    return difference(kind, straight.get(name, ABSENT), interrupted.get(name, ABSENT), name=name, **place)


ABSENT = "absent"
