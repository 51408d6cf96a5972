"""Describes positions in a training: where a snapshot can be taken, and where a pass over the data can begin."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

KeptPlaces = dict[str, tuple[int, int]]
"""The key and the number of each `KeptIterator` in an object, by attribute."""


@dataclass(frozen=True)
class Boundary:
    """
    The point after the first `batch` batches of epoch `epoch`. Both are counted from 0. With `validation_due`, the
    point is before the validation that follows. With `epoch_ended`, it is after the script's epoch-end hooks.
    """

    epoch: int
    batch: int
    validation_due: bool = False
    epoch_ended: bool = False
    finished: bool = False

    @property
    def overlaps(self) -> bool:
        """
        True if training continues directly with a batch of the same epoch. (Then a snapshot can be copied during this
        batch.)
        """
        return not (self.validation_due or self.epoch_ended or self.finished)

    def to_dict(self) -> dict[str, Any]:
        """Return the boundary as snapshots store it. `Boundary(**stored)` reads it."""
        return asdict(self)


@dataclass(frozen=True)
class PassStart:
    """
    The epoch and the batch at which a pass over a loader begins.

    `number` is the loader's index among the training's loaders. With `cycling`, short loaders restart until the longest
    ends.
    """

    epoch: int
    batch: int
    number: int = 0
    cycling: bool = False


@dataclass(frozen=True)
class StreamPosition:
    """
    A position in a stream. A pass that continues from here reads batch `batch` of epoch `epoch` first. `ended` is True
    if the pass has no batch left.

    `state` is the stream's own state; None if the stream has none. If the pass has ended, it is the state between two
    passes.

    A resume has to reread a stream without a state. For such a stream, `mark` is the mark (`mark_of`) of the last batch
    before the position. `kept` has the places of the iterators that the stream keeps from pass to pass, and `values`
    the plain values in its attributes: those at the beginning of the pass that is read again. `then` is the mark of
    these values at the position. If the stream can be read only once, `earlier` has the key of each earlier pass, and
    the number of batches that this pass read.
    """

    epoch: int
    batch: int
    ended: bool
    state: Any
    earlier: tuple[tuple[tuple[int, ...], int], ...] = ()
    mark: int | None = None
    kept: KeptPlaces | None = None
    values: dict[str, Any] | None = None
    then: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the position as snapshots store it. `StreamPosition(**stored)` reads it."""
        whole = {"epoch": self.epoch, "batch": self.batch, "ended": self.ended, "state": self.state}
        more: dict[str, Any] = {
            "mark": self.mark,
            "then": self.then,
            "kept": self.kept or None,
            "values": self.values or None,
            "earlier": self.earlier or None,
        }
        return whole | {name: value for name, value in more.items() if value is not None}

    def begins(self, epoch: int | None, batch: int) -> bool:
        return (self.epoch, self.batch) == (epoch, batch)
