"""Gives a model's buffers the values that virtual rank 0 leaves, as DDP gives all ranks the buffers of rank 0."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from spotrun.training.elastic.virtual_ranks import Share


class Buffers:
    """
    The buffers of one module, such as BatchNorm's running statistics. Each micro-batch of a step begins with the
    buffers from before the step, and the step leaves those of virtual rank 0.
    """

    def __init__(self, module: nn.Module, share: Share) -> None:
        self._module = module
        self._share = share
        self._before: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        copied = len(self._share.virtual_ranks) > 1
        self._before = [(each, each.clone()) for each in self._module.buffers()] if copied else []

    @torch.no_grad()
    def put_back(self) -> None:
        for buffer, value in self._before:
            buffer.copy_(value)

    def spread(self) -> None:
        """Copy the buffers of rank 0 to the other ranks. All ranks call this together."""
        self._before = []
        spread(list(self._module.buffers()), self._share)


@torch.no_grad()
def spread(tensors: list[Tensor], share: Share) -> None:
    """Copy tensors of rank 0 to the other ranks. All ranks call this together."""
    if share.processes == 1:
        return
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for each in tensors:
        groups.setdefault((each.dtype, each.device), []).append(each)
    for group in groups.values():
        flat = torch.cat([each.detach().reshape(-1) for each in group])
        distributed.broadcast(flat, 0)
        values = torch.split(flat, [each.numel() for each in group])
        for each, value in zip(group, values, strict=True):
            each.copy_(value.view_as(each))
