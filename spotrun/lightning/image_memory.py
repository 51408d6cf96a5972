"""
The memory of a checkpoint that a trainer resumes from: most of it is looked at and given back, and what optimizers and
callbacks keep stays where it lies.

New memory is the dearest part of a restore. To touch a page for the first time takes several times as long as to copy
into it, and on a virtual machine whose host has yet to find that page, many times.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from spotrun.checkpoint.snapshot import map_image
from spotrun.lightning.tensors import mapped, owned

KEPT_FROM_BYTES = 64 << 10
"""A smaller tensor is copied: it would hold pages that are given back otherwise."""
_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which the module mmap does not name. An older kernel does nothing."""
_madvise = ctypes.CDLL(None, use_errno=True).madvise  # mmap.madvise keeps the interpreter from other threads
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


Bytes: TypeAlias = bytearray | np.ndarray[Any, np.dtype[np.uint8]]


class Memory(Protocol):
    """`image` is for reading: what is written to it changes nothing."""

    image: Bytes

    def keep(self, tree: Any) -> Any:
        """`tree`, of tensors that are views into `image`, with tensors of its own. Once only, and the last of it."""


class Received:
    """An image of that size that another process is going to send."""

    def __init__(self, size_bytes: int) -> None:
        self.image: Bytes = bytearray(size_bytes)

    def keep(self, tree: Any) -> Any:
        del self.image
        return owned(tree)


class ImageMemory:
    """
    The image behind `fd`, from `start` on, which nobody else may look at any more; closes the descriptor.

    Large tensors that are kept are that memory itself, and what was not kept is given back when the last view into
    `image` is gone. A process that is forked shares it with this one.
    """

    def __init__(self, fd: int, size_bytes: int, start: int = 0) -> None:
        self._lasting = mmap.mmap(fd, size_bytes, offset=start)
        self._private = map_image(fd, size_bytes, start)
        self.image: Bytes = np.frombuffer(self._private, dtype=np.uint8)

    def map_beside(self) -> None:
        """
        Map all pages from another thread: the one that reads them would be held up at every sixteenth, which is a
        third of what it takes to copy them.
        """
        memory = torch.frombuffer(self._private, dtype=torch.uint8)
        threading.Thread(target=_map, args=(memory,), name="spotrun-map", daemon=True).start()

    def keep(self, tree: Any) -> Any:
        start = torch.frombuffer(self._private, dtype=torch.uint8).data_ptr()
        lasting = torch.frombuffer(self._lasting, dtype=torch.uint8)
        kept: list[tuple[int, int]] = []

        def own(tensor: Tensor) -> Tensor:
            begin = tensor.data_ptr() - start
            end = begin + tensor.nbytes
            inside = tensor.is_cpu and tensor.is_contiguous() and begin >= 0 and end <= len(lasting)
            if not inside or tensor.nbytes < KEPT_FROM_BYTES:
                return tensor.detach().clone()
            kept.append((begin, end))
            return lasting[begin:end].view(tensor.dtype).view(tensor.shape)

        found = mapped(tree, own)
        spare = list(_pages_between(sorted(kept), len(lasting)))
        weakref.finalize(self.image, _give_back, os.getpid(), self._private, lasting, spare).atexit = False
        del self.image, self._private
        return found


def _map(memory: Tensor) -> None:
    _madvise(memory.data_ptr(), memory.nbytes, _POPULATE_READ)


def _pages_between(kept: Iterable[tuple[int, int]], size_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, size) of the whole pages that hold nothing of `kept`."""
    free_from = 0
    for begin, end in (*kept, (size_bytes, size_bytes)):
        start, stop = -(-free_from // mmap.PAGESIZE) * mmap.PAGESIZE, begin // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            yield start, stop - start
        free_from = max(free_from, end)


def _give_back(process: int, private: mmap.mmap, memory: Tensor, spare: list[tuple[int, int]]) -> None:
    """In a thread: it takes a tenth of a second a GB. A forked child has no say: its parent may still be reading."""
    if os.getpid() == process:
        threading.Thread(target=_remove, args=(private, memory, spare), name="spotrun-give-back", daemon=True).start()


def _remove(private: mmap.mmap, memory: Tensor, spare: list[tuple[int, int]]) -> None:
    _madvise(torch.frombuffer(private, dtype=torch.uint8).data_ptr(), len(private), mmap.MADV_DONTNEED)
    for start, size_bytes in spare:
        _madvise(memory.data_ptr() + start, size_bytes, mmap.MADV_REMOVE)  # in vain: the memory is held, no harm
