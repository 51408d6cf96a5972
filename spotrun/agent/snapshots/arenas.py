"""
Memory into which a trainer copies its state, made by the agent and handed down (protocol 20).

    free (the trainer's) -> full (the agent's) -> free

Two arenas lie in one memory and have two thirds of each in common, so that snapshots need four thirds of their size
and not twice as much:

    | arena 0                 |
            | arena 1                 |

What they have in common is sent first. From then on the other one is the trainer's, so each is written while the last
third of the one before it is sent. The trainer has one of them at a time.

A memfd needs no /dev/shm. It outlives the trainer, so its snapshots are not lost with it.
"""

from __future__ import annotations

import mmap
import os

COUNT = 2
OWN_ONE_OF = 3
"""
A third of each arena is its own. With a smaller part a snapshot would have to wait longer, and training with it at the
end.
"""


class Arena:
    """
    A window on the memory behind `fd`, from `start` on. `common` is the part that it shares with the other arena,
    counted from its own first byte.
    """

    def __init__(self, number: int, fd: int, memory: mmap.mmap, start: int, size_bytes: int, common: range) -> None:
        self.number = number
        self.start = start
        self.size_bytes = size_bytes
        self.common = common
        self.fd = os.dup(fd)
        self._memory: mmap.mmap | None = memory

    def descriptor(self) -> int | None:
        """Return another descriptor of this memory, the caller's to close; None once the arena was given up."""
        return None if self._memory is None else os.dup(self.fd)

    def image(self, size_bytes: int) -> memoryview:
        """Return the first bytes, before `close`."""
        assert self._memory is not None
        return memoryview(self._memory)[self.start : self.start + size_bytes]

    def close(self) -> None:
        """Close the arena. The memory goes when neither arena nor a view into one is left."""
        os.close(self.fd)
        self._memory = None


def overlapping(first: int, size_bytes: int) -> list[Arena]:
    """Make a memory of its own, and return both of its arenas."""
    own = -(-size_bytes // (OWN_ONE_OF * mmap.PAGESIZE)) * mmap.PAGESIZE
    fd = os.memfd_create(f"spotrun-arena-{first}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, own + size_bytes)
        memory = mmap.mmap(fd, own + size_bytes, prot=mmap.PROT_READ)
        return [
            Arena(first, fd, memory, 0, size_bytes, range(own, size_bytes)),
            Arena(first + 1, fd, memory, own, size_bytes, range(size_bytes - own)),
        ]
    finally:
        os.close(fd)


class Arenas:
    """The arenas of one trainer. A larger set replaces a smaller one, whose full arenas live until they are free."""

    def __init__(self) -> None:
        self._arenas: dict[int, Arena] = {}
        self._full: set[int] = set()
        self._spent: set[int] = set()
        """Full arenas whose common part is not needed any more."""
        self._current: range = range(0)
        self._given: int | None = None

    def grant(self, size_bytes: int) -> list[Arena]:
        """Make a new set, of which the first arena is the trainer's."""
        replaced = self._current
        self._current = range(replaced.stop, replaced.stop + COUNT)
        for arena in overlapping(self._current.start, size_bytes):
            self._arenas[arena.number] = arena
        self._given = self._current.start
        for number in replaced:
            self._drop_if_unused(number)
        return [self._arenas[number] for number in self._current]

    @property
    def none_is_free(self) -> bool:
        """True if the trainer has no arena to write to; False before it has requested any."""
        return bool(self._current) and self._given is None

    def fill(self, number: int) -> Arena | None:
        """Return the arena, now the agent's; None for one that was not the trainer's, which is the trainer's fault."""
        if number != self._given:
            return None
        self._given = None
        self._full.add(number)
        return self._arenas[number]

    def spend(self, number: int) -> None:
        """Note that the common part of a full arena is not needed any more."""
        if number in self._full:
            self._spent.add(number)

    def free(self, number: int) -> None:
        self._full.discard(number)
        self._spent.discard(number)
        self._drop_if_unused(number)

    def give(self) -> int | None:
        """Return the arena that has just become the trainer's; None if none can."""
        full = self._full.intersection(self._current)
        if self._given is not None or not full <= self._spent or len(full) == len(self._current):
            return None
        self._given = next(number for number in self._current if number not in full)
        return self._given

    def close(self) -> None:
        """Note that the trainer is gone: free arenas go now, full ones when they are freed."""
        self._given = None
        self._current = range(self._current.stop, self._current.stop)
        for number in list(self._arenas):
            self._drop_if_unused(number)

    def _drop_if_unused(self, number: int) -> None:
        if number in self._arenas and number not in self._full and number not in self._current:
            self._arenas.pop(number).close()
