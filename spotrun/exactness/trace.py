"""
A *trace* records the work of one rank of a training so exactly that it can be compared, bit for bit, with another
training.

A trace is a list of records, one per line. The records of one trainer process are called a *pass*. After an
interruption, a new process begins a new pass and repeats some steps, so a step may be in the trace several times. All
values are exact: floats are in hexadecimal, and larger objects are replaced by digests.

A *place* is the path of an object, such as `callbacks[0].meters[3].total`. For each place, a trace stores a text that
describes the content of the object at that place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar, get_args

from spotrun.wire import plain

BatchPosition = tuple[int, int]
"""An epoch, and a batch in it, both from 0."""
MEMBERS = ", its members"
"""
Suffix of a place. A set has two places in a trace: the one without this suffix has the number of the set's members, and
the one with this suffix has a digest of the members.
"""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """
    A trainer process begins. `step` is the number of optimizer steps at which it continues; 0 for a new training.
    `processes` train together.
    """

    pid: int
    step: int
    processes: int = 1


@dataclass(frozen=True, kw_only=True)
class Trained:
    """
    The training step of one batch.

    `samples` are the indices from the sampler; None if the loader does not use spotrun's sampler. `data` is the digest
    of the batch. `lr` contains the learning rates, by optimizer and parameter group. `loss` is None if `training_step`
    returned no loss. `rng` is the digest of the random number generators after the batch. `step` is the number of
    optimizer steps so far, including this batch.
    """

    epoch: int
    batch: int
    step: int
    samples: str | None
    data: str
    lr: tuple[tuple[str, ...], ...]
    loss: str | None
    rng: str

    @property
    def position(self) -> BatchPosition:
        return self.epoch, self.batch


@dataclass(frozen=True, kw_only=True)
class Validated:
    """
    A validation has ended, after the training had finished `batch` of `epoch`. `metrics` are all metrics that have been
    logged so far.
    """

    epoch: int
    batch: int
    step: int
    metrics: dict[str, str]

    @property
    def position(self) -> BatchPosition:
        return self.epoch, self.batch


@dataclass(frozen=True, kw_only=True)
class Improved:
    """A callback has seen a new best value of the metric that it watches, after `step` optimizer steps."""

    step: int


@dataclass(frozen=True, kw_only=True)
class ObjectsRecorded:
    """
    The contents of objects at `moment`, a point early in the training and before any interruption. If two trainings
    already differ in an object at this point, an interruption is not the cause.
    """

    moment: str
    places: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """
    Results of one call of `test`, `validate` or `predict` outside of fit(). `pid` is the process that made the call.
    `predictions` is a digest of the predictions; None if the call returned no predictions.
    """

    pid: int
    stage: str
    metrics: dict[str, str]
    predictions: str | None = None


@dataclass(frozen=True, kw_only=True)
class StoppedForKill:
    """The trainer pauses after the step `step` and waits until `spotrun verify-resume` kills it."""

    step: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """
    A call of fit() has ended. `fit` is 1 for the process's first call of fit(), 2 for the second, and so on. `weights`,
    `optimizer` and `rng` are digests, keyed by name: of the weights, of the parts of each optimizer, and of the random
    number generators.

    `unread` maps the place of each object that could not be inspected to its class. `metrics`, `places` and `unread`
    are None in a trace of an earlier version of spotrun.
    """

    step: int
    weights: dict[str, str]
    optimizer: dict[str, str]
    rng: dict[str, str]
    metrics: dict[str, str] | None = None
    places: dict[str, str] | None = None
    unread: dict[str, str] | None = None
    fit: int = 1


@dataclass(frozen=True, kw_only=True)
class ProcessEnded:
    """
    The process `pid` has reached the end of the script. `places` are the contents of the variables of the script's
    modules, and `outside` are the files that the process has written outside the work folder.
    """

    pid: int
    places: dict[str, str]
    unread: dict[str, str]
    outside: tuple[str, ...] = ()


TraceRecord = (
    Begun | Trained | Validated | Improved | ObjectsRecorded | Evaluated | StoppedForKill | Ended | ProcessEnded
)
Kind = TypeVar(
    "Kind", Begun, Trained, Validated, Improved, ObjectsRecorded, Evaluated, StoppedForKill, Ended, ProcessEnded
)

_KINDS: dict[object, Any] = {kind.__name__.lower(): kind for kind in get_args(TraceRecord)}


def encode_record(record: TraceRecord) -> bytes:
    """Encode a record. Bytes of a file name that are not UTF-8 become references like `&#56575;`."""
    text = json.dumps({"type": type(record).__name__.lower(), **vars(record)}, ensure_ascii=False)
    return text.encode("utf-8", "xmlcharrefreplace") + b"\n"


def decode_record(line: bytes) -> TraceRecord | None:
    """
    Decode a line. Return None if the line is incomplete because its writer was killed. Losing this record does no harm:
    either a later pass repeats the step, or the comparison reports the step as missing.
    """
    try:
        fields = json.loads(line)
        record: TraceRecord = plain.typed(_KINDS[fields["type"]], fields)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return record


class Trace:
    """The records of one rank of a training, in the order in which they were written."""

    def __init__(self, records: list[TraceRecord]) -> None:
        self.records = records

    def all_of(self, kind: type[Kind]) -> list[Kind]:
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def begun(self) -> list[Begun]:
        return self.all_of(Begun)

    @property
    def held_at(self) -> list[int]:
        return [record.step for record in self.all_of(StoppedForKill)]

    @property
    def ended(self) -> list[Ended]:
        return self.all_of(Ended)

    @property
    def ends(self) -> list[Ended | ProcessEnded]:
        """The end of each fit, and the end of the last process."""
        return [*self.ended, *self.all_of(ProcessEnded)[-1:]]

    @property
    def steps(self) -> int:
        """The highest optimizer step in the trace."""
        return max((record.step for record in self.all_of(Trained)), default=0)

    def passes(self) -> Iterator[tuple[int, TraceRecord]]:
        """Yield each record with the number of its pass, from 0."""
        number = -1
        for record in self.records:
            number += isinstance(record, Begun)
            yield max(number, 0), record

    def trained(self) -> Iterator[tuple[int, Trained]]:
        """Yield each trained batch with the number of its pass."""
        return ((number, record) for number, record in self.passes() if isinstance(record, Trained))

    def noted(self) -> dict[str, ObjectsRecorded]:
        """Return the first pass's `ObjectsRecorded` records by their `moment`."""
        first = (record for number, record in takewhile(lambda item: item[0] == 0, self.passes()))
        return {record.moment: record for record in first if isinstance(record, ObjectsRecorded)}

    def of_each_process(self) -> list[tuple[Evaluated | ProcessEnded, ...]]:
        """
        Return for each process the results that it produced outside of fit(). The process with the earliest result
        comes first.
        """
        found: dict[int, list[Evaluated | ProcessEnded]] = {}
        for record in self.records:
            if isinstance(record, Evaluated | ProcessEnded):
                found.setdefault(record.pid, []).append(record)
        return [tuple(records) for records in found.values()]

    def resumed_after_holds(self) -> list[int]:
        """
        Return the step from which the training continued after each kill: for each `StoppedForKill`, the `step` of the
        next `Begun`.
        """
        follows = [next((later for later in self.records[n:] if isinstance(later, Begun)), None) for n in self._holds()]
        return [begun.step for begun in follows if begun is not None]

    def _holds(self) -> list[int]:
        return [number for number, record in enumerate(self.records) if isinstance(record, StoppedForKill)]

    def batches_redone(self) -> int:
        positions = [record.position for _, record in self.trained()]
        return len(positions) - len(set(positions))
