"""A boundary of a training, where a snapshot may be taken: the three positions that a checkpoint depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Boundary:
    """After `batch` batches of `epoch` (both from 0), perhaps before validation, or after the epoch's end."""

    epoch: int
    batch: int
    validation_due: bool = False
    epoch_ended: bool = False
    finished: bool = False

    @property
    def overlaps(self) -> bool:
        """True if a batch of the same epoch comes next, and no hook of an epoch or a validation."""
        return not (self.validation_due or self.epoch_ended or self.finished)

    def to_dict(self) -> dict[str, Any]:
        """Return it as snapshots store it; `Boundary(**stored)` is the way back."""
        return asdict(self)


@dataclass(frozen=True)
class PassStart:
    """
    The epoch, and the batch in it, with which a pass over a loader begins.

    `number` is the index of the loader among the training's. `cycling` is true if short loaders begin again until the
    longest ends.
    """

    epoch: int
    batch: int
    number: int = 0
    cycling: bool = False


@dataclass(frozen=True)
class StreamPosition:
    """
    The state from which a pass over a stream begins at `batch` of `epoch`: the stream's own `state`, None if it has
    none.

    `ended`: the pass has no batch left, and `state` is that between two passes. `earlier`: of a stream that can be read
    only once, the passes before and how many batches each has read. `mark`: of a stream without a state, the `mark_of`
    its last batch.
    """

    epoch: int
    batch: int
    ended: bool
    state: Any
    earlier: tuple[tuple[tuple[int, ...], int], ...] = ()
    mark: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as snapshots store it; `StreamPosition(**stored)` is the way back."""
        whole = {"epoch": self.epoch, "batch": self.batch, "ended": self.ended, "state": self.state}
        marked = {} if self.mark is None else {"mark": self.mark}
        return whole | marked | ({"earlier": self.earlier} if self.earlier else {})

    def begins(self, epoch: int | None, batch: int) -> bool:
        return (self.epoch, self.batch) == (epoch, batch)
