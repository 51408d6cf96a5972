"""Adds up the gradients of one process's virtual ranks, as far as the tree allows without the other processes."""

from __future__ import annotations

from torch import Tensor

from spotrun.training.elastic.virtual_ranks import Node, has_right_child, height


class PartialSums:
    """
    The sums of whole subtrees. Leaves are added from the highest virtual rank to the lowest, so at most one sum per
    level of the tree is kept.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._sums: list[tuple[Node, Tensor]] = []
        self._free: list[Tensor] = []

    def add(self, virtual_rank: int, leaf: Tensor) -> None:
        """Add the gradient of the next virtual rank. `leaf` is changed later."""
        node, value = (0, virtual_rank), leaf
        while node[0] < height(self._total) and node[1] % 2 == 0:
            parent = (node[0] + 1, node[1] // 2)
            if has_right_child(self._total, parent):
                if not self._sums or self._sums[-1][0] != (node[0], node[1] + 1):
                    break  # another process has the right child
                right = self._sums.pop()[1]
                value.add_(right)
                self._free.append(right)
            node = parent
        self._sums.append((node, value))

    def free(self) -> Tensor | None:
        """Return the memory of a gradient that has been added to another one; None if there is none."""
        return self._free.pop() if self._free else None

    @property
    def roots(self) -> list[Tensor]:
        """The sums of the subtrees, from left to right."""
        return [value for _, value in reversed(self._sums)]

    def clear(self) -> None:
        self._free += [value for _, value in self._sums]
        self._sums.clear()
