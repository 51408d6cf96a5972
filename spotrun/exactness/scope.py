"""Counts what was compared in two trainings, and lists what could not be compared."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spotrun.exactness.comparison import global_of, places_set_before, varying_names, varying_places
from spotrun.exactness.difference import DifferenceKind
from spotrun.exactness.trace import Evaluated, ProcessEnded, Trace, Validated


class ComparedCount(msgspec.Struct, frozen=True):
    """
    The number of compared objects of one kind. The kinds are `ranks`, `steps`, `validations`, `weights`, `optimizer`,
    `rng`, `metrics`, `state` (values in the script's objects and in callbacks), `results` (of test, validate and
    predict), and `files`.
    """

    what: str
    count: int


class NotCompared(msgspec.Struct, frozen=True):
    """The path of an object that was not compared, and the reason. A difference there would go unnoticed."""

    name: str
    why: str


VARIES = "the two trainings differ there even before any interruption"
SET_BEFORE = "the code before the training sets it only at the first start, or otherwise after a resume"
VARIES_AGAIN = "two uninterrupted runs differ there too"
OLDER = "the trace is of an earlier spotrun"


def compared(traces: Mapping[int, Trace]) -> list[ComparedCount]:
    """Count the compared objects of the uninterrupted training, on all ranks together. Files are not counted."""
    ends = [end for trace in traces.values() for end in trace.ended]
    lefts = [left for trace in traces.values() for left in trace.all_of(ProcessEnded)[-1:]]
    counts = {
        "ranks": len(traces),
        "steps": max((trace.steps for trace in traces.values()), default=0),
        "validations": max(map(_validations, traces.values()), default=0),
        "weights": sum(len(end.weights) for end in ends),
        "optimizer": sum(len(end.optimizer) for end in ends),
        "rng": sum(len(end.rng) for end in ends),
        "metrics": sum(len(end.metrics or ()) for end in ends),
        "state": sum(len(end.places or ()) for end in ends) + sum(len(left.places) for left in lefts),
        "results": sum(len(trace.all_of(Evaluated)) for trace in traces.values()),
    }
    return [ComparedCount(what, count) for what, count in counts.items() if count]


def _validations(trace: Trace) -> int:
    """
    Count the batches after which there was a validation. (The end of an epoch is recorded as a second validation after
    the same batch.)
    """
    return len({one.position for one in trace.all_of(Validated)})


def not_compared(
    straight: Mapping[int, Trace], interrupted: Mapping[int, Trace], again: Mapping[int, Trace] | None = None
) -> list[NotCompared]:
    """Return the objects and metrics that were not compared. `again` is a second uninterrupted training."""
    varying = sorted(varying_names(straight, again).items())
    found = {_in_words(kind, name): VARIES_AGAIN for kind, places in varying for name in places.names()}
    for rank in straight.keys() & interrupted.keys():
        one, other = straight[rank], interrupted[rank]
        found |= dict.fromkeys(varying_places(one, other).names(), VARIES)
        for name in sorted(set(map(global_of, places_set_before(one, other)))):
            found.setdefault(name, SET_BEFORE)
        for trace in (one, other):
            for record in trace.ends:
                if record.unread is None:
                    found["objects of the script"] = OLDER
                found |= {place: f"{name} cannot be inspected" for place, name in (record.unread or {}).items()}
    return [NotCompared(name, why) for name, why in found.items()]


def _in_words(kind: DifferenceKind, name: str) -> str:
    return name if kind is DifferenceKind.STATE else f"{kind} {name}".strip()


def written_outside(*trainings: Mapping[int, Trace]) -> tuple[str, ...]:
    """
    Return the paths of files outside the work folder that processes of the trainings have left behind.
    """
    lefts = [left for traces in trainings for trace in traces.values() for left in trace.all_of(ProcessEnded)]
    return tuple(sorted({path for left in lefts for path in left.outside}))
