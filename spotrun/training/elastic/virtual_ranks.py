"""
Divides the virtual ranks of a training among its processes, and defines the tree along which gradients are added.

The tree is binary. Node (level, number) covers the virtual ranks from `number * 2**level` up to, but not including,
`(number + 1) * 2**level`. The leaves are the virtual ranks, on level 0. If the number of virtual ranks is not a power
of two, some nodes have only a left child.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

Node = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """
    The virtual ranks of one process: those from `first` to `last`, both included, of `total`. `processes` share them,
    and this one is `rank`.
    """

    total: int
    processes: int
    rank: int

    @property
    def virtual_ranks(self) -> range:
        return stretches(self.total, self.processes)[self.rank]

    @property
    def downwards(self) -> range:
        """
        The virtual ranks in the order in which this process trains them. The last one of rank 0 is 0, so what a script
        keeps of its last micro-batch on rank 0 does not depend on the number of processes.
        """
        return self.virtual_ranks[::-1]


@cache
def stretches(total: int, processes: int) -> tuple[range, ...]:
    """
    Divide `total` virtual ranks into one stretch for each process, none longer than `total / processes` rounded up.

    A process sends one gradient for each whole subtree in its stretch. So of all divisions, this is the one in which
    the most subtrees of a process are fewest, then the subtrees of all, then the first stretches are shortest. `total`
    must not be less than `processes`.
    """
    longest = -(-total // processes)

    @cache
    def best(first: int, left: int) -> tuple[int, int, tuple[int, ...]] | None:
        if left == 0:
            return (0, 0, ()) if first == total else None
        found = []
        for length in range(1, min(longest, total - first) + 1):
            rest = best(first + length, left - 1)
            if rest is not None:
                count = len(roots(total, range(first, first + length)))
                found.append((max(count, rest[0]), count + rest[1], (length, *rest[2])))
        return min(found, default=None)

    chosen = best(0, processes)
    assert chosen is not None
    starts = [sum(chosen[2][:number]) for number in range(processes + 1)]
    return tuple(range(first, end) for first, end in itertools.pairwise(starts))


@cache
def roots(total: int, stretch: range) -> tuple[Node, ...]:
    """Return the largest nodes whose leaves are all in `stretch`, from left to right."""
    found, first = [], stretch.start
    while first < stretch.stop:
        level = 0
        while level < height(total) and first % (2 << level) == 0 and min(first + (2 << level), total) <= stretch.stop:
            level += 1
        found.append((level, first >> level))
        first = min(first + (1 << level), total)
    return tuple(found)


def height(total: int) -> int:
    """Return the level of the tree's root."""
    return (total - 1).bit_length()


def has_right_child(total: int, node: Node) -> bool:
    level, number = node
    return level > 0 and (2 * number + 1) << (level - 1) < total


def sum_of(total: int, known: Mapping[Node, T], add: Callable[[T, T], T]) -> T:
    """
    Return the value of the tree's root. `known` has the values of nodes that together cover each leaf once. The value
    of any other node is the sum of its children's values.
    """

    def value(node: Node) -> T:
        if node in known:
            return known[node]
        level, number = node
        left = value((level - 1, 2 * number))
        return add(left, value((level - 1, 2 * number + 1))) if has_right_child(total, node) else left

    return value((height(total), 0))
