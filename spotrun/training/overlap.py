"""
Finds the tensors of a snapshot that can be copied while training continues. Afterwards, checks that nothing wrote to
these tensors in the meantime.

In nearly every script, only an optimizer's step writes to the optimizer's parameters and state. This module checks
that: each tensor counts the writes to it (`Tensor._version`), and a snapshot is valid only if these counts did not
change while it was copied. If they did change, training pauses from then on while a snapshot is copied.

Writes through `.data` are not counted. To detect them, the tensors of an attempt's first snapshot and of every 32nd
snapshot are copied before training continues, and later compared with these copies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from spotrun.checkpoint.accelerator import copies_aside
from spotrun.checkpoint.snapshot import ImagePlan, Piece, is_plain
from spotrun.checkpoint.staging import Staged
from spotrun.training.framework import Framework

FROM_BYTES = 8 << 20
"""
Minimum bytes to copy later. Fewer bytes are copied in under a millisecond, so copying them later would save nothing.
"""
PIECE_FROM_BYTES = 64 << 10
PROBE_EVERY = 32


class Overlap:
    """
    Decides which tensors of a snapshot are copied while training continues. If the framework does not report optimizer
    steps (`steps_optimizers`), an optimizer could write at any time, so all tensors are copied while training pauses.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._allowed = framework.steps_optimizers
        self._snapshots = 0

    def pieces(self, plan: ImagePlan) -> list[Piece]:
        """
        Return the pieces of `plan` that are copied while training continues: the large ones to which only optimizers
        write. If their total size is small, return an empty list, because copying them immediately is then just as
        fast.
        """
        if not self._allowed:
            return []
        large = [piece for piece in plan.pieces if piece.size_bytes >= PIECE_FROM_BYTES]
        owned = set(_owned(self._framework.optimizers)) if large else set()
        found = [piece for piece in large if _place(piece.tensor) in owned and _is_watched(piece.tensor)]
        return found if sum(piece.size_bytes for piece in found) >= FROM_BYTES else []

    def watch(self, later: Sequence[Piece]) -> Watch:
        """Watch the pieces `later` for writes from now on, for the snapshot that is being taken."""
        probes = self._snapshots % PROBE_EVERY == 0
        self._snapshots += bool(later)
        return Watch(later, probes=probes)

    def give_up(self) -> None:
        """From now on, copy all tensors while training pauses, because the script writes between steps."""
        self._allowed = False
        print(
            "spotrun: something writes to weights between optimizer steps; from here on training waits while a "
            "snapshot is copied",
            file=sys.stderr,
            flush=True,
        )


class Watch:
    """
    Checks whether anything wrote to the tensors of one snapshot while training continued. With `probes`, it also
    compares the tensors, byte by byte, with copies that were made before training continued.
    """

    def __init__(self, pieces: Sequence[Piece], *, probes: bool) -> None:
        self.probes = probes
        self._versions = [(piece.tensor, piece.tensor._version) for piece in pieces]

    def sees_writes(self, staged: Staged) -> bool:
        """
        Return True if anything has written to the tensors. Only a watch with `probes` finds writes through `.data`.
        """
        counted = any(tensor._version != version for tensor, version in self._versions)
        return counted or (self.probes and staged.changed())


def _owned(optimizers: Sequence[Any]) -> Iterator[tuple[int, int]]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from map(_place, group["params"])
        states = [state for state in optimizer.state.values() if type(state) is dict or isinstance(state, Mapping)]
        kept = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        yield from (_place(value) for value in kept if value.nbytes >= PIECE_FROM_BYTES)


def _is_watched(tensor: Tensor) -> bool:
    """
    Return True if writes to `tensor` are counted, and it can be copied in the background, because it is in plain CPU
    memory or in that of an accelerator that copies while it computes.
    """
    return (copies_aside(tensor) or is_plain(tensor)) and not tensor.is_inference()


def _place(tensor: Tensor) -> tuple[int, int]:
    """Return the address of a tensor's memory, and its number of elements."""
    return tensor.data_ptr(), tensor.numel()
