"""A training's boundaries, at which snapshots may be taken, and the positions at which its data continues."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Boundary:
    """
    The point after `batch` batches of `epoch` (both from 0). It may be before a validation, or after the epoch's end.
    """

    epoch: int
    batch: int
    validation_due: bool = False
    epoch_ended: bool = False
    finished: bool = False

    @property
    def overlaps(self) -> bool:
        """True if a batch of the same epoch comes next, without an epoch hook or a validation in between."""
        return not (self.validation_due or self.epoch_ended or self.finished)

    def to_dict(self) -> dict[str, Any]:
        """Return the boundary as snapshots store it. `Boundary(**stored)` reads it."""
        return asdict(self)


@dataclass(frozen=True)
class PassStart:
    """
    The epoch and the batch with which a pass over a loader begins.

    `number` is the loader's index among the training's loaders. With `cycling`, short loaders restart until
    the longest ends.
    """

    epoch: int
    batch: int
    number: int = 0
    cycling: bool = False


@dataclass(frozen=True)
class StreamPosition:
    """
    A stream's position: a pass that starts from it begins with `batch` of `epoch`. `state` is the stream's own state;
    None if the stream has no state.

    `ended`: the pass has no batch left, and `state` is the state between two passes. `earlier`, for a stream that can
    be read only once: the earlier passes, each with its number of batches. `mark`, for a stream without a state: the
    mark (`mark_of`) of the last batch before the position.
    """

    epoch: int
    batch: int
    ended: bool
    state: Any
    earlier: tuple[tuple[tuple[int, ...], int], ...] = ()
    mark: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the position as snapshots store it. `StreamPosition(**stored)` reads it."""
        whole = {"epoch": self.epoch, "batch": self.batch, "ended": self.ended, "state": self.state}
        marked = {} if self.mark is None else {"mark": self.mark}
        return whole | marked | ({"earlier": self.earlier} if self.earlier else {})

    def begins(self, epoch: int | None, batch: int) -> bool:
        return (self.epoch, self.batch) == (epoch, batch)
