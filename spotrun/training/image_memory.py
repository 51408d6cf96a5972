"""
Manages the memory that holds the checkpoint from which a trainer resumes.

The trainer copies most tensors out of this memory. Large tensors that optimizers and callbacks use are not copied, but
used in place. Then the memory is freed, except for the parts that hold these tensors.

Large tensors are not copied because new memory is the most expensive part of a restore. Touching a page for the first
time takes several times as long as copying into it. On a virtual machine whose host has not allocated that page yet, it
takes many times as long.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from spotrun.checkpoint.snapshot import map_image
from spotrun.trainer_link import LinkClosed
from spotrun.training.tensors import mapped, owned, tensors_of

KEPT_FROM_BYTES = 64 << 10
"""
Minimum bytes of a tensor that is not copied. A smaller tensor is copied, because if it stayed, its whole pages could
not be freed.
"""
_POPULATE_READ = 22
"""
MADV_POPULATE_READ, which Python's mmap does not define. Linux has had it since 5.14. An older kernel returns an error,
which does no harm.
"""
_MAPPED_BYTES = 4 << 20
_MAPPING_PAUSE_S = 1e-4
"""
Pause in seconds between two madvise calls. While a call runs, every thread that allocates memory waits; without pauses
such a thread would wait 4 ms or more.
"""
_madvise = ctypes.CDLL(None, use_errno=True).madvise  # releases the interpreter lock, which mmap.madvise does not
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


Bytes: TypeAlias = bytearray | np.ndarray[Any, np.dtype[np.uint8]]


class Arrival:
    """Tracks how many bytes of an image have arrived."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._lost = False
        self._changed = threading.Condition()

    def has(self, size_bytes: int) -> None:
        with self._changed:
            self.size_bytes = max(self.size_bytes, size_bytes)
            self._changed.notify_all()

    def ends(self) -> None:
        """
        Record that no more bytes will arrive. Any call to `need` for bytes that have not arrived then raises
        LinkClosed, even one that is already waiting.
        """
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def need(self, end: int) -> None:
        """
        Wait for the first `end` bytes.

        Raises:
            LinkClosed: the agent, which fetches the bytes, is gone.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost or self.size_bytes >= end)
            if self.size_bytes < end:
                raise LinkClosed("the agent is gone, and with it the rest of the checkpoint")


class ImageMemory:
    """
    A checkpoint in the shared memory `fd`, starting at byte `start`. If `here_bytes` is given, only that many bytes
    have arrived at first, and the agent fetches the rest. This object closes `fd`. No process except this one and the
    agent may use the shared memory.

    `image` is for reading: it is a private view, so a write to it would not change the shared memory. Large tensors
    that `keep` returns are views of the shared memory itself, so that a fork of this process does not copy them.
    """

    def __init__(self, fd: int, size_bytes: int, start: int = 0, here_bytes: int | None = None) -> None:
        self._lasting = mmap.mmap(fd, size_bytes, offset=start)
        self._private = map_image(fd, size_bytes, start)
        self._kept: list[tuple[int, int]] = []
        self.image: Bytes = np.frombuffer(self._private, dtype=np.uint8)
        self.arrival = Arrival(size_bytes if here_bytes is None else here_bytes)

    def map_beside(self) -> None:
        """
        Map all pages in another thread, as they arrive. Without this, the copying thread would spend a third of its
        time on page faults, one for every sixteen pages.
        """
        memory = torch.frombuffer(self._private, dtype=torch.uint8)
        threading.Thread(target=_map, args=(memory, self.arrival), name="spotrun-map", daemon=True).start()

    def need(self, end: int) -> None:
        """Wait until the first `end` bytes of `image` have arrived. Raise the same errors as `Arrival.need`."""
        self.arrival.need(end)

    def need_all_of(self, tree: Any) -> None:
        """Wait until the tensors of `tree`, which are views into `image`, have arrived."""
        start = self._start_address()
        ends = [tensor.data_ptr() + tensor.nbytes - start for tensor in tensors_of(tree)]
        self.need(max((end for end in ends if end <= len(self._private)), default=0))

    def keep(self, tree: Any) -> Any:
        """
        Wait until all tensors of `tree` have arrived. Return a copy of `tree` whose tensors remain valid after
        `let_go`. Small tensors are copied; large ones stay in the shared memory.
        """
        start = self._start_address()
        lasting = torch.frombuffer(self._lasting, dtype=torch.uint8)

        def own(tensor: Tensor) -> Tensor:
            begin = tensor.data_ptr() - start
            end = begin + tensor.nbytes
            inside = tensor.is_cpu and tensor.is_contiguous() and begin >= 0 and end <= len(lasting)
            if not inside or tensor.nbytes < KEPT_FROM_BYTES:
                return tensor.detach().clone()
            self._kept.append((begin, end))
            return lasting[begin:end].view(tensor.dtype).view(tensor.shape)

        self.need_all_of(tree)
        return mapped(tree, own)

    def let_go(self) -> None:
        """
        Free the memory, except the parts with tensors that `keep` returned, as soon as no other view into `image`
        exists. Do not call `keep` after this.
        """
        lasting = torch.frombuffer(self._lasting, dtype=torch.uint8)
        spare = list(_pages_between(sorted(self._kept), len(lasting)))
        weakref.finalize(self.image, _give_back, os.getpid(), self._private, lasting, spare).atexit = False
        del self.image, self._private

    def _start_address(self) -> int:
        return torch.frombuffer(self._private, dtype=torch.uint8).data_ptr()


class Received:
    """An image that arrives from another process, in plain memory. It has the same interface as `ImageMemory`."""

    def __init__(self, size_bytes: int) -> None:
        self.image: Bytes = bytearray(size_bytes)

    def need(self, end: int) -> None:
        pass

    def need_all_of(self, tree: Any) -> None:
        pass

    def keep(self, tree: Any) -> Any:
        return owned(tree)

    def let_go(self) -> None:
        del self.image


Memory: TypeAlias = ImageMemory | Received


def _map(memory: Tensor, arrival: Arrival) -> None:
    start = 0
    with contextlib.suppress(LinkClosed):
        while start < memory.nbytes:
            arrival.need(start + 1)
            size_bytes = min(_MAPPED_BYTES, arrival.size_bytes - start)
            _madvise(memory.data_ptr() + start, size_bytes, _POPULATE_READ)
            start += size_bytes
            time.sleep(_MAPPING_PAUSE_S)


def _pages_between(kept: Iterable[tuple[int, int]], size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of each range of whole pages that contains no kept byte."""
    free_from = 0
    for begin, end in (*kept, (size_bytes, size_bytes)):
        start, stop = -(-free_from // mmap.PAGESIZE) * mmap.PAGESIZE, begin // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            yield start, stop - start
        free_from = max(free_from, end)


def _give_back(process: int, private: mmap.mmap, memory: Tensor, spare: list[tuple[int, int]]) -> None:
    """
    Free the memory in another thread, because this takes 0.1 s per GB. In a forked child, do nothing, because the
    parent may still read this memory.
    """
    if os.getpid() == process:
        threading.Thread(target=_remove, args=(private, memory, spare), name="spotrun-give-back", daemon=True).start()


def _remove(private: mmap.mmap, memory: Tensor, spare: list[tuple[int, int]]) -> None:
    _madvise(torch.frombuffer(private, dtype=torch.uint8).data_ptr(), len(private), mmap.MADV_DONTNEED)
    for start, size_bytes in spare:
        _madvise(memory.data_ptr() + start, size_bytes, mmap.MADV_REMOVE)  # if this fails, the memory stays allocated
