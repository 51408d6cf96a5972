"""
Trains the micro-batches of an elastic training (`Loop.micro_batches`): those of this process's virtual ranks, one after
another, as parts of one step.

Before each micro-batch, the random number generators are seeded with its place, and the model's buffers get their
values from before the step. After the last one, each parameter has the mean gradient over all virtual ranks, and every
process has the same buffers and generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from spotrun.loop.adapter import LoopFramework
from spotrun.training.data.data_order import ExactOrder, weights_of
from spotrun.training.data.samplers import Samplers
from spotrun.training.ddp_buckets import ddps_of
from spotrun.training.elastic.buffers import Buffers, spread
from spotrun.training.elastic.mean_gradients import MeanGradients, SparseGradient
from spotrun.training.elastic.means import DifferentCalls, Means
from spotrun.training.elastic.micro_guard import COLLECTIVE, rejected
from spotrun.training.elastic.refusals import SPARSE
from spotrun.training.elastic.replicas import Replicas
from spotrun.training.elastic.virtual_ranks import Share
from spotrun.training.trace.of_framework import FrameworkTrace

Refuse = Callable[[str, str], NoReturn]
READ_BY = "read it as `for x, y in loop.micro_batches(batch): …`"
ALL_OF_THEM = "run every micro-batch to its end: leave no `break` in the loop over loop.micro_batches"


class Seeds(Protocol):
    def seed_all_at(self, *place: object) -> None: ...


class Batch:
    """
    A batch of an elastic training, of which this process reads only its micro-batches. `weights` has the weight of each
    virtual rank.
    """

    def __init__(self, share: Share, parts: Iterator[Any], samples: int, refuse: Refuse) -> None:
        self.weights = weights_of(samples, share.total)
        self._unread = parts
        self._share = share
        self._read: list[Any] = []
        self._refuse = refuse

    def parts(self) -> Iterator[Any]:
        """Yield the micro-batches in the order of `Share.downwards`. Further calls yield the same ones again."""
        for number in range(len(self._share.downwards)):
            if number == len(self._read):
                self._read.append(next(self._unread))
            yield self._read[number]

    def close(self) -> None:
        """Read the micro-batches that the script has not read, so that the next batch follows."""
        for _ in self.parts():
            pass

    def __iter__(self) -> NoReturn:
        self._refuse("the job is elastic, and the script reads a whole batch", READ_BY)


class ElasticSteps:
    """The steps of one elastic training."""

    def __init__(
        self, framework: LoopFramework, share: Share, seeds: Seeds, trace: FrameworkTrace | None, refuse: Refuse
    ) -> None:
        self._framework = framework
        self._share = share
        self._seeds = seeds
        self._trace = trace
        self._refuse = refuse
        self._gradients = MeanGradients(framework.module, share)
        self._buffers = Buffers(framework.module, share)
        self._means = Means(share, _device(framework.module))
        self._replicas = Replicas(share, _device(framework.module))
        self._virtual: int | None = None
        self._left = self._has_gradients = False
        self._batch: tuple[int, ...] = ()
        self._calls = 0

    def begin(self) -> None:
        """Give all processes the weights and buffers of rank 0. Call this before the first step."""
        module, given = self._framework.module, self._framework.given
        if given.averaged or (self._share.processes > 1 and any(True for _ in ddps_of(module))):
            names = ", ".join(given.averaged) or "a model"
            self._refuse(
                f"the job is elastic, and DistributedDataParallel averages the gradients of {names}",
                "give the loop a model without DistributedDataParallel: loop.micro_batches averages its gradients",
            )
        if self._framework.own_objects:
            self._refuse(
                "the job is elastic, and loop.cycle does not divide its batches", "read all data with one DataLoader"
            )
        spread([*module.parameters(), *module.buffers()], self._share)

    def batches(self, order: ExactOrder, parts: Iterator[Any], first: int) -> Iterator[Batch]:
        """
        Yield the batches of a pass, from batch `first`. `parts` yields this process's micro-batches of all of them.
        """
        for number in count(first):
            try:
                indices = order.indices(number)
            except IndexError:
                return
            batch = Batch(self._share, parts, len(indices), self._refuse)
            yield batch
            batch.close()

    def micro_batches(self, batch: Any) -> Iterator[Any]:
        """
        Yield this process's micro-batches of `batch`. If `batch` is None, yield the numbers of its virtual ranks: the
        script draws the micro-batch itself.
        """
        if self._virtual is not None:
            self._refuse("loop.micro_batches was called within a micro-batch", ALL_OF_THEM)
        if batch is not None and not isinstance(batch, Batch):
            self._refuse(
                f"loop.micro_batches got a {type(batch).__name__}", "give it a batch of loop.batches, or nothing"
            )
        self._gradients.begin()
        self._buffers.begin()
        self._means.begin()
        downwards = self._share.downwards
        weights = batch.weights if batch is not None else dict.fromkeys(range(self._share.total), 1.0)
        place = self._place()
        for virtual, part in zip(downwards, downwards if batch is None else batch.parts(), strict=True):
            if virtual != downwards[0]:
                self._buffers.put_back()
            self._virtual = virtual
            self._seeds.seed_all_at("micro-batch", *place, virtual)
            if self._trace is not None:
                self._trace.micro_batch_begins(virtual, part)
            try:
                with rejected(self._reject):
                    yield part
            except GeneratorExit:
                self._left = True
                raise
            if self._trace is not None:
                self._trace.micro_batch_ends(virtual)
            try:
                self._gradients.take(virtual, weights[virtual])
            except SparseGradient:
                self._refuse(*SPARSE)
        self._virtual = None
        self._has_gradients |= self._gradients.end()
        self._buffers.spread()
        try:
            self._means.end(weights)
        except DifferentCalls:
            self._refuse("loop.mean was called for some micro-batches of a step only", "call it in each of them")
        self._seeds.seed_all_at("micro-batches end", *place)

    def mean(self, value: Any) -> Tensor:
        """Return a tensor that has the mean of `value` over all virtual ranks after the step's last micro-batch."""
        if self._virtual is None:
            self._refuse(
                "loop.mean was called outside of a micro-batch", "call it within `for … in loop.micro_batches(batch):`"
            )
        return self._means.add(self._virtual, as_number(value))

    def step_begins(self) -> None:
        """Refuse an optimizer's step whose gradients are not those of all micro-batches."""
        if self._left:
            self.batch_ends()
        if self._virtual is not None:
            self._refuse(
                "an optimizer steps within a micro-batch", "call optimizer.step() after the loop over the micro-batches"
            )
        if not self._has_gradients and any(each.grad is not None for each in self._gradients.parameters):
            self._refuse(
                "the script calls backward() outside of the micro-batches",
                "call loss.backward() within `for … in loop.micro_batches(batch):`",
            )

    def batch_ends(self) -> None:
        """Refuse a step whose micro-batches the script has not run to their end, and processes that differ."""
        if self._virtual is not None:
            self._refuse("the script left the loop over its micro-batches early", ALL_OF_THEM)
        if self._replicas.differ(self._framework.module.parameters()):
            self._refuse(
                "the processes have different weights",
                "outside of micro-batches, let each process do the same: call backward() in micro-batches only, draw "
                "no random numbers on one rank alone, and use loop.mean for figures on which the training depends",
            )
        self._has_gradients &= not self._framework.stepped

    def check(self, loader: Any) -> None:
        """Refuse training data that cannot be divided among virtual ranks."""
        if getattr(loader, "batch_sampler", None) is None:
            self._refuse("the job is elastic, and its training data has no batches", "give the DataLoader a batch_size")
        if Samplers(loader.batch_sampler).divides:
            self._refuse(
                "the job is elastic, and its sampler already divides the data among processes",
                "give the DataLoader shuffle=True in place of the DistributedSampler, and the batch size of all "
                "processes together",
            )

    def _place(self) -> tuple[int, ...]:
        """Return the place of the next call of `micro_batches`: a script may call it several times in one batch."""
        batch = self._framework.epoch, self._framework.passes_before, self._framework.batch
        self._calls = self._calls + 1 if batch == self._batch else 0
        self._batch = batch
        return *batch, self._calls

    def _reject(self, name: str) -> NoReturn:
        if name not in COLLECTIVE:
            self._refuse(
                f"a micro-batch calls {name}(), and has no gradients yet",
                "call optimizer.zero_grad() after optimizer.step(), or before the loop over the micro-batches",
            )
        self._refuse(
            f"a micro-batch calls torch.distributed.{name}, and processes may have different numbers of micro-batches",
            "use loop.mean for figures, BatchNorm in place of SyncBatchNorm, and no DistributedDataParallel",
        )


def as_number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _device(module: nn.Module) -> torch.device:
    return next((each.device for each in module.parameters()), torch.device("cpu"))
