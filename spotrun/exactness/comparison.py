"""
Compares two trainings of one script bit for bit, and names the likely cause of the first difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from spotrun.exactness.trace import BatchPosition, Trace, Trained


class DifferenceKind(StrEnum):
    """What can differ, in the order of cause and effect within a step."""

    SAMPLES = "samples"
    DATA = "data"
    LR = "lr"
    LOSS = "loss"
    RNG = "rng"
    STEPS = "steps"
    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    END_RNG = "end_rng"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """
    The first difference between a straight (never interrupted) and an interrupted training.

    `epoch`, `batch` (both from 0) and `step` are None if all steps were the same and only the ends differ. `name` is
    the weight, the part of an optimizer or the generator. `resumed` is False if the trainings differed before anything
    was interrupted.
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


def first_difference(straight: Trace, interrupted: Trace) -> Difference | None:
    """
    The earliest difference between the two; None if they are the same, bit for bit.

    It compares every pass of `interrupted` over a batch, and no batch of `straight` may be missing.
    """
    found = _of_steps(straight, interrupted)
    return found if found is not None else _of_ends(straight, interrupted)


def digest_of(parts: Mapping[str, str]) -> str:
    """One sha256 over named digests."""
    return sha256("".join(f"{name}={parts[name]}\n" for name in sorted(parts)).encode()).hexdigest()


# -- steps -----------------------------------------------------------------------------------------------------------


def _of_steps(straight: Trace, interrupted: Trace) -> Difference | None:
    wanted = {record.position: record for _, record in straight.trained()}
    done: dict[BatchPosition, list[tuple[int, Trained]]] = {}
    for number, record in interrupted.trained():
        done.setdefault(record.position, []).append((number, record))
    for position in sorted(wanted.keys() | done.keys()):
        if position not in wanted or position not in done:
            return _of_length(position, wanted.get(position), done.get(position))
        for number, record in done[position]:
            if (difference := _of_one_step(wanted[position], record, resumed=number > 0)) is not None:
                return difference
    return None


def _of_length(position: BatchPosition, wanted: Trained | None, done: list[tuple[int, Trained]] | None) -> Difference:
    known = wanted if wanted is not None else done[0][1] if done else None
    assert known is not None
    straight, interrupted = ("trained" if trained else "not trained" for trained in (wanted is not None, done))
    epoch, batch = position
    return _difference(DifferenceKind.STEPS, straight, interrupted, epoch=epoch, batch=batch, step=known.step)


def _of_one_step(wanted: Trained, done: Trained, *, resumed: bool) -> Difference | None:
    pairs: dict[DifferenceKind, tuple[object, object]] = {
        DifferenceKind.SAMPLES: (wanted.samples, done.samples),
        DifferenceKind.DATA: (wanted.data, done.data),
        DifferenceKind.LR: (_listed(wanted.lr), _listed(done.lr)),
        DifferenceKind.LOSS: (wanted.loss, done.loss),
        DifferenceKind.RNG: (wanted.rng, done.rng),
        DifferenceKind.STEPS: (wanted.step, done.step),
    }
    for kind, (one, other) in pairs.items():
        if one != other:
            place = {"epoch": wanted.epoch, "batch": wanted.batch, "step": wanted.step}
            return _difference(kind, str(one), str(other), resumed=resumed, **place)
    return None


def _listed(rates: tuple[tuple[str, ...], ...]) -> str:
    return "; ".join(", ".join(groups) for groups in rates)


# -- ends ------------------------------------------------------------------------------------------------------------


def _of_ends(straight: Trace, interrupted: Trace) -> Difference | None:
    if not straight.ended or not interrupted.ended:
        ends = ["ended" if trace.ended else "not ended" for trace in (straight, interrupted)]
        return _difference(DifferenceKind.STEPS, *ends)
    straight_ends = {end.fit: end for end in straight.ended}
    for done in interrupted.ended:
        wanted = straight_ends.get(done.fit)
        if wanted is None:
            return _difference(DifferenceKind.STEPS, "not ended", "ended", step=done.step)
        for kind, one, other in (
            (DifferenceKind.WEIGHTS, wanted.weights, done.weights),
            (DifferenceKind.OPTIMIZER, wanted.optimizer, done.optimizer),
            (DifferenceKind.END_RNG, wanted.rng, done.rng),
        ):
            if one != other:
                return _of_parts(kind, one, other)
    return None


def _of_parts(kind: DifferenceKind, straight: Mapping[str, str], interrupted: Mapping[str, str]) -> Difference:
    names = [*straight, *(name for name in interrupted if name not in straight)]
    name = next(name for name in names if straight.get(name) != interrupted.get(name))
    return _difference(kind, straight.get(name, "absent"), interrupted.get(name, "absent"), name=name)


# -- causes ----------------------------------------------------------------------------------------------------------

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
    DifferenceKind.WEIGHTS: (
        "all steps were the same and the weights are not: something changes them outside of training_step (a hook at "
        "the end, an averaging callback), or training_step returns no loss that could have shown it earlier"
    ),
    DifferenceKind.OPTIMIZER: (
        "all steps and the weights are the same and the optimizer's state is not: it keeps something that its "
        "state_dict() does not save and load alike"
    ),
    DifferenceKind.END_RNG: "only the generators differ: a hook at the end of fit() draws a varying number of times",
}
_AFTER_RESUME = (
    "; or state of the script that no checkpoint holds (an iterator, a closure, an object of a library; the script's "
    "output names what was seen to change)"
)
_ON_ITS_OWN = "; it differed before any interruption, so two runs of the script differ without spotrun's doing too"
_STATEFUL = frozenset({DifferenceKind.DATA, DifferenceKind.LR, DifferenceKind.LOSS, DifferenceKind.RNG})


def _difference(
    kind: DifferenceKind, straight: str, interrupted: str, *, resumed: bool = True, **place: Any
) -> Difference:
    """With its likely cause."""
    also = _ON_ITS_OWN if not resumed else _AFTER_RESUME if kind in _STATEFUL else ""
    cause = _CAUSES[kind] + also
    return Difference(
        kind=kind, straight=straight, interrupted=interrupted, likely_cause=cause, resumed=resumed, **place
    )
