"""
The memory into which a trainer copies its state, made by the agent and handed down (protocol 20).

    free (the trainer's) -> full (the agent's) -> free

Memfds need no /dev/shm. They outlive the trainer, so what was snapshot is not lost with it.
"""

from __future__ import annotations

import contextlib
import mmap
import os

COUNT = 2
"""One is uploaded while the next is written."""


class Arena:
    def __init__(self, number: int, size_bytes: int) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.fd = os.memfd_create(f"spotrun-arena-{number}", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes)
        self._map = mmap.mmap(self.fd, size_bytes, prot=mmap.PROT_READ)

    def shared(self) -> int | None:
        """Another descriptor of this memory, the caller's to close; None once it was given up."""
        return None if self._map.closed else os.dup(self.fd)

    def image(self, size_bytes: int) -> memoryview:
        """The first bytes; to be released before `close`."""
        return memoryview(self._map)[:size_bytes]

    def close(self) -> None:
        os.close(self.fd)
        with contextlib.suppress(BufferError):  # the traceback of a failed save may still hold a view
            self._map.close()


class Arenas:
    """The arenas of one trainer. A larger set replaces a smaller one, whose full arenas live until they are free."""

    def __init__(self) -> None:
        self._arenas: dict[int, Arena] = {}
        self._full: set[int] = set()
        self._current: range = range(0)

    def grant(self, size_bytes: int) -> list[Arena]:
        """A new set of `COUNT` free arenas."""
        replaced = self._current
        self._current = range(replaced.stop, replaced.stop + COUNT)
        for number in self._current:
            self._arenas[number] = Arena(number, size_bytes)
        for number in replaced:
            self._drop_if_unused(number)
        return [self._arenas[number] for number in self._current]

    @property
    def all_full(self) -> bool:
        """The trainer has none to write to; false before it has asked for any."""
        return bool(self._current) and self._full.issuperset(self._current)

    def fill(self, number: int) -> Arena | None:
        """The arena, now the agent's; None for one that was never granted or is full already: a trainer gone wrong."""
        if number not in self._arenas or number in self._full:
            return None
        self._full.add(number)
        return self._arenas[number]

    def free(self, number: int) -> None:
        self._full.discard(number)
        self._drop_if_unused(number)

    def close(self) -> None:
        """The trainer is gone: free ones go now, full ones when they are freed."""
        self._current = range(self._current.stop, self._current.stop)
        for number in list(self._arenas):
            self._drop_if_unused(number)

    def _drop_if_unused(self, number: int) -> None:
        if number in self._arenas and number not in self._full and number not in self._current:
            self._arenas.pop(number).close()
