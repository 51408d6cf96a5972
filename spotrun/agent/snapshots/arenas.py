"""
Memory into which a trainer copies its state. The agent makes this memory, and passes it to the trainer (protocol 20).

    free (the trainer's) -> full (the agent's) -> free

Two arenas share one block of memory, and overlap by two thirds of their size. So together they need four thirds of a
snapshot's size, instead of twice the size:

    | arena 0                 |
            | arena 1                 |

When an arena is full, the agent first sends the two thirds that overlap with the other arena. Then the trainer gets the
other arena, and writes to it while the agent sends the last third of the full one. The trainer has at most one arena at
a time.

The memory is a memfd. It needs no /dev/shm, and it remains after the trainer has died, so the trainer's snapshots are
not lost.
"""

from __future__ import annotations

import mmap
import os

COUNT = 2
OWN_ONE_OF = 3
"""
Size of an arena, as a multiple of the part that it does not share with the other arena: a third is not shared. With a
smaller unshared part, the two arenas would need less memory, but their common part would be larger. The common part has
to be sent before the trainer gets the other arena, so the trainer would wait longer until it can take its next
snapshot. At the end of a run, the trainer always takes another snapshot, and would stand still while it waits.
"""


class Arena:
    """A window of the memory `fd`, from byte `start` on. It shares the bytes in `common` with the other arena."""

    def __init__(self, number: int, fd: int, memory: mmap.mmap, start: int, size_bytes: int, common: range) -> None:
        self.number = number
        self.start = start
        self.size_bytes = size_bytes
        self.common = common
        self.fd = os.dup(fd)
        self._memory: mmap.mmap | None = memory

    def descriptor(self) -> int | None:
        """Return a new descriptor of this memory, which the caller has to close; None if the arena is closed."""
        return None if self._memory is None else os.dup(self.fd)

    def image(self, size_bytes: int) -> memoryview:
        """Return a view of the first `size_bytes` of the arena. The arena must not be closed yet."""
        assert self._memory is not None
        return memoryview(self._memory)[self.start : self.start + size_bytes]

    def close(self) -> None:
        """Close the arena. The memory is freed when both arenas and all views into them are closed."""
        os.close(self.fd)
        self._memory = None


def overlapping(first: int, size_bytes: int) -> list[Arena]:
    """Allocate the memory of two arenas, and return the arenas, numbered from `first`."""
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
    """
    The arenas of one trainer. When the state grows, a larger pair replaces the smaller one. Full arenas of the smaller
    pair remain until they are freed.
    """

    def __init__(self) -> None:
        self._arenas: dict[int, Arena] = {}
        self._full: set[int] = set()
        self._spent: set[int] = set()
        """
        Full arenas whose common part (the memory that the two arenas share) can be overwritten, because it is in the
        store or its upload was cancelled.
        """
        self._current: range = range(0)
        self._given: int | None = None

    def grant(self, size_bytes: int) -> list[Arena]:
        """Make a new pair of arenas, and give the first one to the trainer."""
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
        """True if the trainer has requested arenas, and now has no arena to write to."""
        return bool(self._current) and self._given is None

    def fill(self, number: int) -> Arena | None:
        """
        Take over the full arena `number` from the trainer, and return the arena. Return None if the trainer did not
        have that arena, which is an error in the trainer.
        """
        if number != self._given:
            return None
        self._given = None
        self._full.add(number)
        return self._arenas[number]

    def spend(self, number: int) -> None:
        """Allow the common part of a full arena to be overwritten, so that the trainer can get the other arena."""
        if number in self._full:
            self._spent.add(number)

    def free(self, number: int) -> None:
        self._full.discard(number)
        self._spent.discard(number)
        self._drop_if_unused(number)

    def give(self) -> int | None:
        """Give an arena to the trainer, and return the arena's number. Return None if no arena can be given now."""
        full = self._full.intersection(self._current)
        if self._given is not None or not full <= self._spent or len(full) == len(self._current):
            return None
        self._given = next(number for number in self._current if number not in full)
        return self._given

    def close(self) -> None:
        """Close the arenas of a trainer that has ended. Unused arenas are closed now, full ones when they are freed."""
        self._given = None
        self._current = range(self._current.stop, self._current.stop)
        for number in list(self._arenas):
            self._drop_if_unused(number)

    def _drop_if_unused(self, number: int) -> None:
        if number in self._arenas and number not in self._full and number not in self._current:
            self._arenas.pop(number).close()
