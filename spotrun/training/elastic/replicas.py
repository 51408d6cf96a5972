"""Checks that the processes of an elastic training stay replicas of each other."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, distributed

from spotrun.training.elastic.virtual_ranks import Share

ALWAYS, EVERY = 4, 64
"""The weights are compared after each of the first `ALWAYS` steps, and then after every `EVERY`-th."""


class Replicas:
    """Compares the weights of the processes after some of the steps."""

    def __init__(self, share: Share, device: torch.device) -> None:
        self._share = share
        self._device = device
        self._steps = 0

    @torch.no_grad()
    def differ(self, weights: Iterable[Tensor], *, now: bool = False) -> bool:
        """
        Return True if the processes have different weights. All processes call this together, once in each step. It is
        False if it is not this step's turn, unless the comparison has to be made `now`.
        """
        self._steps += not now
        if self._share.processes == 1 or not (now or self._steps <= ALWAYS or self._steps % EVERY == 0):
            return False
        sums = [_bits(each) for each in weights]
        mine = torch.stack(sums).to(self._device) if sums else torch.zeros(1, dtype=torch.int64, device=self._device)
        first = mine.clone()
        distributed.broadcast(first, 0)
        unequal = (first != mine).any().to(torch.int64).reshape(1)
        distributed.all_reduce(unequal)
        return bool(unequal.item())


def _bits(weight: Tensor) -> Tensor:
    """Return a sum over the bits of a tensor that changes if a bit changes, but for sums that are equal by chance."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = weight.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return flat.view(integers[flat.element_size()]).sum(dtype=torch.int64)
