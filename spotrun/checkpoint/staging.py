"""
Writes the trainer's images into free arenas. Some tensors of an image can be copied while training continues.

The trainer writes only into free arenas, and only the agent frees arenas (protocol 20). `Stager` has the same interface
as the stagers of meta-pytorch/torch_checkpointing, so one of those could replace it.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from spotrun.checkpoint.accelerator import CopyStreams, Moment, pin, unpin
from spotrun.checkpoint.snapshot import ImagePlan, Piece, bytes_in, write_header, write_pieces

_PAGE_BYTES = 4096
T = TypeVar("T")


class CopyTask(Generic[T]):
    """
    A task for the thread that copies tensors. The thread does one task at a time, in the order in which `begin` was
    called.

    A task holds the interpreter lock briefly for each tensor. So begin it while the training thread is inside a
    computation, and does not need the lock.
    """

    def __init__(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> None:
        self._pool = pool
        self._work = work
        self._future: Future[T] | None = None

    def begin(self) -> None:
        if self._future is None:
            self._future = self._pool.submit(self._work)

    def done(self) -> bool:
        return self._future is not None and self._future.done()

    def result(self) -> T:
        """Wait until the task is done, and return its result. If `begin` has not been called, call it first."""
        self.begin()
        assert self._future is not None
        return self._future.result()


class Staged:
    """
    An image in the arena with the number `arena`. The pieces in `later` are copied there later, while the training
    continues. They are complete when `done()` returns True.
    """

    def __init__(self, arena: int, memory: Tensor, later: Sequence[Piece], copying: CopyTask[None] | None) -> None:
        self.arena = arena
        self.later = later
        self._memory = memory
        self._copying = copying

    def begin(self) -> None:
        if self._copying is not None:
            self._copying.begin()

    def done(self) -> bool:
        return self._copying is None or self._copying.done()

    def wait(self) -> None:
        if self._copying is not None:
            self._copying.result()

    def changed(self) -> bool:
        """
        Return True if a tensor in `later` now differs from its copy in the arena. This check takes as long as copying
        the tensors.
        """
        return not all(_same_bits(piece, self._memory) for piece in self.later)


class Stager:
    """Writes images into arenas. While one thread runs `stage`, another may call `adopt` and `free`."""

    def __init__(self, lanes: CopyStreams | None = None) -> None:
        self._lanes = lanes or CopyStreams()
        self._lock = threading.Condition()
        self._memory: Tensor | None = None
        self._arenas: dict[int, Tensor] = {}
        self._free: list[int] = []
        self._copier = ThreadPoolExecutor(1, "spotrun-copy")
        self.size_bytes = 0

    def adopt(self, fd: int, size_bytes: int, starts: Sequence[int], first: int, used_bytes: int | None = None) -> None:
        """
        Replace all arenas with new ones in the memory behind the descriptor `fd`, and close `fd`.

        The new arenas have `size_bytes` each, begin at the offsets `starts`, and are numbered from `first`. At first,
        only arena number `first` is free. The first `used_bytes` of each arena are allocated now, by writing one byte
        into each page. The rest, which lets images grow, takes up no memory until it is used.
        """
        memory = _map_shared(fd, max(starts) + size_bytes)
        arenas = {first + n: memory[start : start + size_bytes] for n, start in enumerate(starts)}
        for arena in arenas.values():
            # Touch each page now. `adopt` does not run on the training thread, so these page faults do not delay
            # training. If they happened during a later copy into the arena, they would take at least 7 times as long as
            # the copy itself.
            arena[:used_bytes:_PAGE_BYTES] = 0
        pin(memory)
        with self._lock:
            replaced, self._memory = self._memory, memory
            self._arenas, self._free, self.size_bytes = arenas, [first], size_bytes
            self._lock.notify_all()
        if replaced is not None:
            self._copier.submit(unpin, replaced)  # once the copies into it that are in progress have ended

    def free(self, arena: int) -> None:
        """Free an arena. Numbers of replaced arenas are ignored."""
        with self._lock:
            if arena in self._arenas and arena not in self._free:
                self._free.append(arena)
                self._lock.notify_all()

    def ready(self, size_bytes: int = 0) -> bool:
        """Return True if there is a free arena of at least this size."""
        with self._lock:
            return bool(self._free) and self.size_bytes >= size_bytes

    def wait(self, size_bytes: int, timeout_s: float) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: bool(self._free) and self.size_bytes >= size_bytes, timeout_s)

    def stage(self, plan: ImagePlan, later: Sequence[Piece] = (), *, overlapped: bool = True) -> Staged:
        """
        Write the image into a free arena. Before the call, `ready(plan.size_bytes)` must be True.

        `later` contains some of the plan's pieces. With `overlapped`, this method does not copy these pieces: another
        thread does so after `Staged.begin` is called. They must not change until they are copied.

        Without `overlapped`, this method copies all pieces before it returns. Later, `Staged.changed` can check whether
        the pieces in `later` have changed.
        """
        with self._lock:
            index = self._free.pop(0)
            arena = self._arenas[index]
        write_header(plan, arena)
        waiting = later if overlapped else ()
        at_once = _without(plan.pieces, waiting)
        write_pieces(at_once, arena, wait=False)
        for device in self._lanes.devices(_tensors(at_once)):
            self._lanes.wait(device)
        copy = partial(write_pieces, waiting, arena, wait=False)
        return Staged(index, arena, later, self.aside(copy, _tensors(waiting)) if waiting else None)

    def aside(self, work: Callable[[], T], tensors: Iterable[Tensor] = ()) -> CopyTask[T]:
        """
        Return a task that does `work` on the copying thread. Computations that began on the device before this call may
        still be writing to `tensors`; the task waits for them before it reads `tensors`. The caller must not change
        `tensors` until the task is done.
        """
        moment = Moment(tensors, self._lanes)

        def beside() -> T:
            with moment.beside():
                return work()

        return CopyTask(self._copier, beside)

    def close(self) -> None:
        """Wait for copies in progress, and end the copying thread."""
        self._copier.shutdown()


def _without(pieces: Sequence[Piece], some: Collection[Piece]) -> list[Piece]:
    starts = {piece.start for piece in some}
    return [piece for piece in pieces if piece.start not in starts]


def _tensors(pieces: Iterable[Piece]) -> list[Tensor]:
    return [piece.tensor for piece in pieces]


def _same_bits(piece: Piece, memory: Tensor) -> bool:
    one = bytes_in(piece.tensor.detach().contiguous().cpu())
    other = memory[piece.start : piece.start + piece.size_bytes]
    if not (piece.size_bytes | one.data_ptr() | other.data_ptr()) % 8:
        one, other = one.view(torch.int64), other.view(torch.int64)  # 8 bytes at a time, in a seventh of the time
    return torch.equal(one, other)


def _map_shared(fd: int, size_bytes: int) -> Tensor:
    try:
        return torch.frombuffer(mmap.mmap(fd, size_bytes), dtype=torch.uint8)
    finally:
        os.close(fd)
