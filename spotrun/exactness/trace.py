"""
A *trace*: what one training did, batch by batch, exact enough to compare it with another training.

A trace is a list of records, one a line. Each trainer process begins a *pass*. After an interruption the next pass does
some steps again, so a step may be in the trace several times. Numbers are exact: floats in hexadecimal, everything
larger as a digest.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

BatchPosition = tuple[int, int]
"""Epoch and batch in it, both from 0."""


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """A trainer process begins, after `step` optimizer steps."""

    pid: int
    step: int


class Trained(msgspec.Struct, frozen=True, kw_only=True, tag="trained"):
    """
    The training has done one batch.

    `samples` are the indices that the sampler gave; None if the loader does not use our sampler. `data` is the digest
    of the batch. `lr` holds the learning rates of the batch, per optimizer and parameter group. `loss` is None if
    `training_step` returned none. `rng` is the digest of the generators after the batch. `step` counts optimizer steps,
    including this batch's.
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


class Held(msgspec.Struct, frozen=True, kw_only=True, tag="held"):
    """The trainer stops after `step`, and waits there to be killed."""

    step: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The `fit`-th fit() is over. Digests by the names of weights, parts of optimizers, and generators."""

    step: int
    weights: dict[str, str]
    optimizer: dict[str, str]
    rng: dict[str, str]
    fit: int = 1


TraceRecord = Begun | Trained | Held | Ended

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[TraceRecord] = msgspec.json.Decoder(TraceRecord)


def encode_record(record: TraceRecord) -> bytes:
    return _encoder.encode(record) + b"\n"


def decode_record(line: bytes) -> TraceRecord | None:
    """None for a line that a killed process left torn: its step is done again, or the comparison finds it missing."""
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError:
        return None


class Trace:
    """The records of one training, in the order of writing."""

    def __init__(self, records: list[TraceRecord]) -> None:
        self.records = records

    @property
    def begun(self) -> list[Begun]:
        return [record for record in self.records if isinstance(record, Begun)]

    @property
    def held_at(self) -> list[int]:
        return [record.step for record in self.records if isinstance(record, Held)]

    @property
    def ended(self) -> list[Ended]:
        return [record for record in self.records if isinstance(record, Ended)]

    @property
    def steps(self) -> int:
        """The newest optimizer step."""
        return max((record.step for record in self.records if isinstance(record, Trained)), default=0)

    def trained(self) -> Iterator[tuple[int, Trained]]:
        """Each trained batch with the number of its pass, from 0."""
        number = -1
        for record in self.records:
            number += isinstance(record, Begun)
            if isinstance(record, Trained):
                yield max(number, 0), record

    def resumed_after_holds(self) -> list[int]:
        """For each hold, the step from which the next pass continued."""
        follows = [next((later for later in self.records[n:] if isinstance(later, Begun)), None) for n in self._holds()]
        return [begun.step for begun in follows if begun is not None]

    def _holds(self) -> list[int]:
        return [number for number, record in enumerate(self.records) if isinstance(record, Held)]

    def batches_redone(self) -> int:
        positions = [record.position for _, record in self.trained()]
        return len(positions) - len(set(positions))
