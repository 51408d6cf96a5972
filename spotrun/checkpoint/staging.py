"""
The trainer's side of the arenas: an image goes into a free one, at once or with a part of it while training goes on.

protocol.md 20: the trainer writes only into free arenas, and only the agent frees them. The interface is what
meta-pytorch/torch_checkpointing calls a stager, so that it could be exchanged: a plan goes in, an arena's number comes
out.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from spotrun.checkpoint.snapshot import Piece, Plan, write_header, write_pieces

_PAGE_BYTES = 4096


class Staged:
    """An image in arena number `arena`, of which a thread may still be copying the pieces `later`."""

    def __init__(self, arena: int, memory: Tensor, later: Sequence[Piece], copying: Future[None] | None) -> None:
        self.arena = arena
        self.later = later
        self._memory = memory
        self._copying = copying

    def done(self) -> bool:
        return self._copying is None or self._copying.done()

    def wait(self) -> None:
        """Until everything is in the arena."""
        if self._copying is not None:
            self._copying.result()

    def changed(self) -> bool:
        """Whether the arena holds something else than the tensors of `later` now; takes as long as the copy did."""
        return not all(_same_bits(piece, self._memory) for piece in self.later)


class Stager:
    """Safe for one thread that stages and one that adopts and frees."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._arenas: dict[int, Tensor] = {}
        self._free: list[int] = []
        self._copier = ThreadPoolExecutor(1, "spotrun-copy")
        self.size_bytes = 0

    def adopt(self, fds: Sequence[int], size_bytes: int, first: int) -> None:
        """Map new arenas in place of the old ones, and touch their pages. Closes the descriptors."""
        arenas = {first + n: _map_shared(fd, size_bytes) for n, fd in enumerate(fds)}
        for arena in arenas.values():
            arena[::_PAGE_BYTES] = 0  # off the training thread: a page fault per 4 kB is 7 times what the copy takes
        with self._lock:
            self._arenas, self._free, self.size_bytes = arenas, list(arenas), size_bytes
            self._lock.notify_all()

    def free(self, arena: int) -> None:
        """A number of an earlier set is ignored: that arena is not mapped any more."""
        with self._lock:
            if arena in self._arenas and arena not in self._free:
                self._free.append(arena)
                self._lock.notify_all()

    def ready(self, size_bytes: int = 0) -> bool:
        """An arena is free, and large enough."""
        with self._lock:
            return bool(self._free) and self.size_bytes >= size_bytes

    def wait(self, size_bytes: int, timeout_s: float) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: bool(self._free) and self.size_bytes >= size_bytes, timeout_s)

    def stage(self, plan: Plan, later: Sequence[Piece] = (), *, overlapped: bool = True) -> Staged:
        """
        Write the image into a free arena; `ready(plan.size_bytes)` must hold.

        With `overlapped` the pieces `later`, some of the plan's, are copied by a thread and must not change until it is
        done; without it they are there already, and `Staged.changed` tells whether they did.
        """
        with self._lock:
            index = self._free.pop(0)
            arena = self._arenas[index]
        write_header(plan, arena)
        waiting = later if overlapped else ()
        write_pieces(_without(plan.pieces, waiting), arena)
        copying = self._copier.submit(write_pieces, waiting, arena) if waiting else None
        return Staged(index, arena, later, copying)

    def close(self) -> None:
        """A copy that is under way ends first."""
        self._copier.shutdown()


def _without(pieces: Sequence[Piece], some: Collection[Piece]) -> list[Piece]:
    starts = {piece.start for piece in some}
    return [piece for piece in pieces if piece.start not in starts]


def _same_bits(piece: Piece, memory: Tensor) -> bool:
    one = piece.tensor.detach().view(-1).view(torch.uint8)
    other = memory[piece.start : piece.start + piece.size_bytes]
    if not (piece.size_bytes | one.data_ptr() | other.data_ptr()) % 8:
        one, other = one.view(torch.int64), other.view(torch.int64)  # bytes one by one take seven times as long
    return torch.equal(one, other)


def _map_shared(fd: int, size_bytes: int) -> Tensor:
    try:
        return torch.frombuffer(mmap.mmap(fd, size_bytes), dtype=torch.uint8)
    finally:
        os.close(fd)
