"""Computes the means of values that a script has computed in each micro-batch, such as its loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, distributed

from spotrun.training.elastic.virtual_ranks import Share, stretches, sum_of

WITHIN = float("nan")
"""Value of a mean until the step's last micro-batch has ended."""


class DifferentCalls(Exception):
    """Raised if the micro-batches of a step have different numbers of values."""


class Means:
    """
    The means of one step. `add` returns a tensor that has the mean after `end`.

    A mean is computed in float64, along the same tree for any number of processes. The values are exchanged on
    `device`.
    """

    def __init__(self, share: Share, device: torch.device) -> None:
        self._share = share
        self._device = device
        self._values: dict[int, list[float]] = {}
        self._means: list[Tensor] = []
        self.of_first: list[float] = []
        """After `end`, the values of virtual rank 0, in the order of the calls of `add`."""

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that `add` has returned in each micro-batch so far, in the order of the calls."""
        return self._means

    def begin(self) -> None:
        self._values, self._means, self.of_first = {}, [], []

    def add(self, virtual_rank: int, value: float) -> Tensor:
        values = self._values.setdefault(virtual_rank, [])
        if len(values) == len(self._means):
            self._means.append(torch.tensor(WITHIN, dtype=torch.float64))
        values.append(value)
        return self._means[len(values) - 1]

    def end(self, weights: Mapping[int, float]) -> None:
        """
        Compute the means. `weights` has the weight of each virtual rank; the weights of all sum to their number. All
        processes call this together, with the same weights.

        Raises:
            DifferentCalls: the numbers of values differ between this process's micro-batches.
        """
        if len({len(self._values.get(each, ())) for each in self._share.virtual_ranks}) > 1:
            raise DifferentCalls
        if not self._means:
            return
        rows = self._everyone([self._values[each] for each in self._share.virtual_ranks])
        self.of_first = rows[0]
        for number, mean in enumerate(self._means):
            parts = {(0, each): row[number] * weights[each] for each, row in enumerate(rows)}
            mean.fill_(sum_of(self._share.total, parts, float.__add__) / self._share.total)

    def _everyone(self, own: list[list[float]]) -> list[list[float]]:
        """Return the values of each virtual rank."""
        share, cut = self._share, stretches(self._share.total, self._share.processes)
        if share.processes == 1:
            return own
        padding = [own[0]] * (max(map(len, cut)) - len(own))
        mine = torch.tensor([*own, *padding], dtype=torch.float64, device=self._device)
        boxes = [torch.empty_like(mine) for _ in range(share.processes)]
        distributed.all_gather(boxes, mine)
        return [row for box, stretch in zip(boxes, cut, strict=True) for row in box[: len(stretch)].tolist()]
