"""Describes one difference between two trainings of the same script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec


class DifferenceKind(StrEnum):
    """
    Kinds of differences, in the order in which they can occur: in a step, after a step, at the end of the training, and
    after the training. A difference of one kind usually causes differences of the kinds that follow.
    """

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
    A difference between a straight (never interrupted) and an interrupted training.

    `epoch` and `batch` (both from 0) and `step` are None for comparisons at the end of training. `name` is the name of
    what differs (a weight, a part of an optimizer, a random number generator or a metric), or the path of an object or
    a file. `where` is the part of the named object or file that differs. `rank` is the rank on which the trainings
    differ; None if there is only one process. `resumed` is False if the trainings differ before any interruption.
    `trained_before` is True if an earlier process trained this batch without a difference, and was killed later.
    """

    kind: DifferenceKind
    straight: str
    interrupted: str
    resumed: bool = True
    trained_before: bool = False
    epoch: int | None = None
    batch: int | None = None
    step: int | None = None
    name: str | None = None
    where: str | None = None
    rank: int | None = None


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """The first `NAMED_MAX` differences, in the order of the training, and the number of differences of each kind."""

    named: tuple[Difference, ...] = ()
    counts: dict[DifferenceKind, int] = {}

    @property
    def first(self) -> Difference | None:
        return self.named[0] if self.named else None

    @property
    def count(self) -> int:
        return sum(self.counts.values())


NAMED_MAX = 100


def gathered(found: Iterable[Difference]) -> Differences:
    named, counts = list[Difference](), Counter[DifferenceKind]()
    for each in found:
        counts[each.kind] += 1
        if len(named) < NAMED_MAX:
            named.append(each)
    return Differences(named=tuple(named), counts=dict(counts))


def difference(kind: DifferenceKind, straight: str, interrupted: str, **place: Any) -> Difference:
    return Difference(kind=kind, straight=straight, interrupted=interrupted, **place)


def of_parts(
    kind: DifferenceKind, straight: Mapping[str, str], interrupted: Mapping[str, str], **place: Any
) -> Iterator[Difference]:
    """Yield a difference for each name that has different values in `straight` and `interrupted`."""
    for name in dict.fromkeys((*straight, *interrupted)):
        one, other = straight.get(name, ABSENT), interrupted.get(name, ABSENT)
        if one != other:
            yield difference(kind, one, other, name=name, **place)


ABSENT = "absent"
