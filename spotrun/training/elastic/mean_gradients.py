"""
Computes the mean of the virtual ranks' gradients, with the same bits for any number of processes.

Each process first adds the gradients of its own virtual ranks (partial_sums.py). Then the processes exchange the sums
of whole subtrees: each process is the owner of an equal part of the parameters, receives this part of all sums, adds up
the rest of the tree, and sends the result to all. With one subtree per process, this sends as many bytes as a ring
all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, distributed, nn

from spotrun.training.elastic.partial_sums import PartialSums
from spotrun.training.elastic.virtual_ranks import Node, Share, roots, stretches, sum_of

BUCKET_BYTES = 25 << 20
"""Maximum bytes of the gradients that are exchanged at once. It bounds the memory of the exchange."""


class SparseGradient(Exception):
    """Raised for a gradient that cannot be exchanged, because it is sparse."""


class MeanGradients:
    """
    The mean gradients of those parameters of `module` that are trained. In each step, call `begin`, then `take` after
    the backward pass of each of this process's virtual ranks, then `end`. All processes call `end` together.

    A gradient that a parameter already had at `begin` is added to the mean: the script accumulates gradients over
    several batches. Within a step, `put_back` gives the parameters these gradients for a while, until `begin` is called
    again.
    """

    def __init__(self, module: nn.Module, share: Share) -> None:
        self._module = module
        self._share = share
        self.parameters: list[nn.Parameter] = []
        """The parameters that were trained in the newest step."""
        self._groups: list[_Group] = []

    def begin(self) -> None:
        trained = [each for each in self._module.parameters() if each.requires_grad]
        if list(map(id, trained)) != list(map(id, self.parameters)):
            self.parameters, self._groups = trained, self._grouped(trained)
        for group in self._groups:
            group.begin()

    def _grouped(self, parameters: Sequence[nn.Parameter]) -> list[_Group]:
        groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in parameters:
            groups.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        return [_Group(group, self._share) for group in groups.values()]

    def put_back(self) -> None:
        for group in self._groups:
            group.put_back()

    def take(self, virtual_rank: int, weight: float) -> None:
        """
        Take the gradients of the virtual rank that has just been trained from the parameters. `weight` is the number of
        its samples, divided by the mean number over all virtual ranks.

        Raises:
            SparseGradient: a gradient is sparse.
        """
        if any(each.grad is not None and each.grad.layout is not torch.strided for each in self.parameters):
            raise SparseGradient
        for group in self._groups:
            group.take(virtual_rank, weight)

    def end(self) -> bool:
        """
        Set each parameter's gradient to the mean, or leave it without one if no virtual rank has used it. Return True
        if a virtual rank has used any.
        """
        used = [group.end() for group in self._groups]
        return any(used)


class _Group:
    """
    Parameters of one type on one device. A gradient of all of them is one flat tensor. Behind the gradients, it has a
    number for each parameter, which is above 0 if a virtual rank has used the parameter.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], share: Share) -> None:
        self._parameters = parameters
        self._ends = [*accumulate(each.numel() for each in parameters)]
        self._size = self._ends[-1] + len(parameters)
        self._sums = PartialSums(share.total)
        self._exchange = _Exchange(parameters[0], self._size, share)
        self._mean = parameters[0].new_zeros(self._size)
        self._ours = self._views(self._mean)
        self._before: list[Tensor | None] = []

    def begin(self) -> None:
        self._before = [_kept(each.grad, ours) for each, ours in zip(self._parameters, self._ours, strict=True)]
        for each in self._parameters:
            each.grad = None

    def put_back(self) -> None:
        for each, before in zip(self._parameters, self._before, strict=True):
            each.grad = before

    def take(self, virtual_rank: int, weight: float) -> None:
        leaf = self._sums.free()
        leaf = self._mean.new_empty(self._size) if leaf is None else leaf
        used = [each.grad is not None for each in self._parameters]
        for each, view in zip(self._parameters, self._views(leaf), strict=True):
            if each.grad is None:
                view.zero_()
            else:
                view.copy_(each.grad.detach())
            each.grad = None
        if weight != 1.0:
            leaf[: self._ends[-1]].mul_(weight)
        leaf[self._ends[-1] :].copy_(torch.tensor(used))
        self._sums.add(virtual_rank, leaf)

    def end(self) -> bool:
        self._exchange.mean(self._sums.roots, self._mean)
        self._sums.clear()
        used = self._mean[self._ends[-1] :].tolist()
        for each, ours, before, share in zip(self._parameters, self._ours, self._before, used, strict=True):
            if not share:
                each.grad = before
            elif before is None:
                each.grad = ours
            else:
                each.grad = before.add_(ours)
        self._before = []
        return any(used)

    def _views(self, flat: Tensor) -> list[Tensor]:
        starts = (0, *self._ends)
        sizes = zip(starts, self._ends, strict=False)
        return [flat[start:end].view_as(each) for (start, end), each in zip(sizes, self._parameters, strict=True)]


def _kept(gradient: Tensor | None, ours: Tensor) -> Tensor | None:
    """Return the gradient in memory that the next mean does not overwrite."""
    return gradient.clone() if gradient is ours else gradient


class _Exchange:
    """The tree above the processes' sums. Its memory is kept, because fresh memory costs as much as the additions."""

    def __init__(self, like: Tensor, size: int, share: Share) -> None:
        self._share = share
        self._roots = [roots(share.total, stretch) for stretch in stretches(share.total, share.processes)]
        bucket = min(size, max(1, BUCKET_BYTES // like.element_size()))
        self._part = -(-bucket // share.processes)
        self._bucket = self._part * share.processes
        sent = len(self._roots[share.rank]) * self._bucket if share.processes > 1 else 0
        received = sum(map(len, self._roots)) * self._part if share.processes > 1 else 0
        self._sent, self._received = like.new_zeros(sent), like.new_zeros(received)
        self._whole = like.new_zeros(self._bucket if share.processes > 1 else 0)

    def mean(self, sums: Sequence[Tensor], mean: Tensor) -> None:
        """Write the mean into `mean`. `sums` are this process's sums, in the order of their nodes."""
        if self._share.processes == 1:
            torch.div(sums[0], self._share.total, out=mean)
            return
        for start in range(0, len(mean), self._bucket):
            here = mean[start : start + self._bucket]
            _gather(self._whole, self._own_part(sums, start))
            here.copy_(self._whole[: len(here)])

    def _own_part(self, sums: Sequence[Tensor], start: int) -> Tensor:
        """Return this process's part of the mean of the bucket that begins at `start`."""
        processes = self._share.processes
        sent = self._sent.view(processes, len(sums), self._part)
        for number, each in enumerate(sums):
            _fill(sent[:, number], each[start : start + self._bucket])
        sizes = [len(nodes) * self._part for nodes in self._roots]
        distributed.all_to_all_single(self._received, self._sent, sizes, [len(sums) * self._part] * processes)
        parts = dict(zip(self._nodes(), self._received.view(-1, self._part), strict=True))
        whole: Tensor = sum_of(self._share.total, parts, Tensor.add_)
        return whole.div_(self._share.total)

    def _nodes(self) -> Iterator[Node]:
        for nodes in self._roots:
            yield from nodes


def _gather(whole: Tensor, part: Tensor) -> None:
    """Write the parts of all processes into `whole`, in the order of ranks."""
    newer: Any = getattr(distributed, "all_gather_single", None)  # torch 2.13 deprecates the older name
    (newer or distributed.all_gather_into_tensor)(whole, part)


def _fill(parts: Tensor, values: Tensor) -> None:
    """Copy the flat `values` into the rows of `parts`. At the end, there may be fewer values than room."""
    rows, size = divmod(len(values), parts.shape[1])
    parts[:rows].copy_(values[: rows * parts.shape[1]].view(rows, parts.shape[1]))
    if size:
        parts[rows, :size].copy_(values[rows * parts.shape[1] :])
