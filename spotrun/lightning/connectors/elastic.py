"""
Trains the micro-batches of an elastic training with Lightning: those of this process's virtual ranks, one after
another, as parts of one step. `training_step` is called for each.

Lightning and the script's callbacks see only the last micro-batch of a process, which is that of virtual rank 0 on rank
0. Before its backward pass, the gradients of the others have been taken. After it, each parameter has the mean
gradient. So from `on_after_backward` on, all is as under DistributedDataParallel, which is not used.

Values that `training_step` logs are exchanged once in a step: with `sync_dist=True` the mean over all virtual ranks is
logged, and otherwise the value of virtual rank 0. Everything outside of a micro-batch, such as validation, is done by
each process alone, with the same data and the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, distributed
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from spotrun.training.by_name import is_a
from spotrun.training.data.data_order import changed, order_of, weights_of
from spotrun.training.elastic.buffers import Buffers, spread
from spotrun.training.elastic.mean_gradients import MeanGradients, SparseGradient
from spotrun.training.elastic.means import DifferentCalls, Means
from spotrun.training.elastic.micro_guard import COLLECTIVE, rejected
from spotrun.training.elastic.refusals import SPARSE
from spotrun.training.elastic.replicas import Replicas
from spotrun.training.elastic.virtual_ranks import Share
from spotrun.training.framework import Framework, Problem
from spotrun.training.taps import Taps

MEAN = ("mean", torch.mean)
TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks with which a script may change a batch. They may draw random numbers."""
UNEVEN_LOGS = Problem(
    "the job is elastic, and only some micro-batches log a value", "log the same values in each call of training_step"
)


class Steps(Protocol):
    """The methods of `Fit` that an elastic step calls."""

    def seed_all_at(self, *place: object) -> None: ...

    def refuse(self, reason: str, hint: str) -> NoReturn: ...


class Trace(Protocol):
    def micro_batch_begins(self, virtual_rank: int, batch: Any) -> None: ...

    def micro_batch_ends(self, virtual_rank: int) -> None: ...


def problem(trainer: Any) -> Problem | None:
    """Return why this Trainer cannot change its number of processes; None if it can."""
    module = trainer.lightning_module
    if not module.automatic_optimization:
        return Problem(
            "the job is elastic, and the module optimizes manually",
            "write the training with Loop, or remove elastic from the job",
        )
    if any(is_a(part, "SyncBatchNorm") for part in module.modules()) or vars(trainer.strategy).get("_layer_sync"):
        return Problem(
            "the job is elastic, and SyncBatchNorm exchanges values within a micro-batch",
            "use BatchNorm: Trainer(sync_batchnorm=False)",
        )
    if any(is_a(callback, "StochasticWeightAveraging") for callback in trainer.callbacks):
        return Problem(
            "the job is elastic, and StochasticWeightAveraging computes BatchNorm's statistics from parts of the data",
            "use the callback WeightAveraging, or EMAWeightAveraging",
        )
    return None


def widened(loader: Any, virtual_ranks: int) -> Any:
    """
    Return a copy of `loader` whose batches are those of all virtual ranks together: `batch_size` is that of one. Return
    None if its batches are not made by PyTorch's own BatchSampler.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, DataLoader) or type(sampler) is not BatchSampler:
        return None
    if isinstance(loader.dataset, IterableDataset) or isinstance(sampler.sampler, DistributedSampler):
        return None
    wide = BatchSampler(sampler.sampler, sampler.batch_size * virtual_ranks, sampler.drop_last)
    return changed(loader, {"batch_sampler": wide, "_iterator": None})


class ElasticSteps:
    """The steps of one elastic fit(). It replaces methods of the Trainer's parts from `open` to `close`."""

    trace: Trace | None = None

    def __init__(self, trainer: Any, framework: Framework, share: Share, fit: Steps) -> None:
        self._trainer = trainer
        self._framework = framework
        self._share = share
        self._fit = fit
        self._module: Any = trainer.lightning_module
        self._gradients = MeanGradients(self._module, share)
        self._buffers = Buffers(self._module, share)
        self._virtual: int | None = None
        self._weights: Mapping[int, float] = {}
        self._logged: list[tuple[str, Any, dict[str, Any]]] = []
        self._taps = Taps()
        self._metrics: list[Any] = []

    def open(self) -> None:
        strategy = self._trainer.strategy
        self._trainer._accelerator_connector.use_distributed_sampler = False
        if hasattr(strategy, "configure_ddp"):
            self._taps.around(strategy, "configure_ddp", lambda original: None)
        self._taps.around(self._trainer._data_connector, "_prepare_dataloader", self._prepare)
        self._taps.around(strategy, "training_step", self._training_step)
        self._taps.around(self._trainer.precision_plugin, "backward", self._backward)
        self._taps.around(self._module, "log", self._log)

    def close(self) -> None:
        self._taps.close()

    def begin(self) -> None:
        """Give all processes the weights and buffers of rank 0. Call this before the first step."""
        if len(self._framework.loaders("train")) != 1:
            self._fit.refuse("the job is elastic, and it reads several training loaders", "read one DataLoader")
        self._metrics = [part for part in self._module.modules() if is_a(part, "Metric")]
        for metric in self._metrics:
            metric.sync_on_compute = metric._to_sync = False  # each process validates, tests and predicts all data
        device = next((each.device for each in self._module.parameters()), torch.device("cpu"))
        self._means, self._replicas = Means(self._share, device), Replicas(self._share, device)
        spread([*self._module.parameters(), *self._module.buffers()], self._share)

    def _prepare(self, original: Callable[..., Any], loader: Any, shuffle: bool, mode: Any) -> Any:
        if mode.value != "train":
            return original(loader, shuffle, mode)
        wide = widened(loader, self._share.total)
        if wide is None:
            self._fit.refuse(
                "the job is elastic, and its training data cannot be divided among virtual ranks",
                "read a map-style dataset with DataLoader(dataset, batch_size=…), without a DistributedSampler and "
                "without a batch_sampler; batch_size is that of one virtual rank",
            )
        return original(wide, shuffle, mode)

    def batch_ends(self) -> None:
        self._compare(now=False)

    def epoch_ends(self) -> None:
        self._compare(now=True)

    def _compare(self, *, now: bool) -> None:
        if self._replicas.differ(self._module.parameters(), now=now):
            self._fit.refuse(
                "the processes have different weights",
                "outside of training_step, let each process do the same: draw no random numbers on one rank alone, and "
                "decide by values that self.log has got with sync_dist=True, not by the outputs of on_train_batch_end",
            )

    # --- the micro-batches

    def _training_step(self, original: Callable[..., Any], batch: Any, *rest: Any) -> Any:
        (loader,) = self._framework.loaders("train")
        order = order_of(loader)
        assert order is not None
        held, downwards, place = loader.exact.held, self._share.downwards, self._place()
        samples = len(order.indices(place[1]))
        self._weights = weights_of(samples, self._share.total)
        self._samples_of_first = -(-samples // self._share.total)
        self._gradients.begin()
        self._buffers.begin()
        self._means.begin()
        counts = self._counts()
        output = None
        for virtual, part in zip(downwards, held, strict=True):
            if virtual != downwards[0]:
                self._buffers.put_back()
            self._virtual, before, self._logged = virtual, self._logged, []
            self._fit.seed_all_at("micro-batch", *place, virtual)
            if self.trace is not None:
                self.trace.micro_batch_begins(virtual, part)
            last = virtual == downwards[-1]
            moved = batch if last and not self._changes_batches() else self._moved(part)
            with rejected(self._reject):
                if last:
                    self._gradients.put_back()
                output = original(moved, *rest)
                loss = output.get("loss") if isinstance(output, Mapping) else output
                if loss is None:
                    self._fit.refuse("the job is elastic, and training_step returned no loss", "return a loss")
                if not last:
                    self._backward_of(loss)
            if virtual != downwards[0] and [name for name, *_ in before] != [name for name, *_ in self._logged]:
                self._fit.refuse(*UNEVEN_LOGS)
            if self.trace is not None:
                self.trace.micro_batch_ends(virtual)
            if not last:
                self._take(virtual)
        self._virtual = None
        if counts != self._counts():
            self._fit.refuse(
                "the job is elastic, and training_step updates a metric of torchmetrics",
                "log the number of each micro-batch with self.log(name, value, sync_dist=True), or update the metric "
                "in validation_step",
            )
        self._log_all()
        return output

    def _backward_of(self, loss: Tensor) -> None:
        """Compute the gradients of a micro-batch, without the hooks that Lightning calls once in a batch."""
        loss = loss / self._trainer.accumulate_grad_batches
        scaler = getattr(self._trainer.precision_plugin, "scaler", None)
        self._module.backward(loss if scaler is None else scaler.scale(loss))

    def _backward(self, original: Callable[..., Any], loss: Tensor, module: Any, optimizer: Any, *rest: Any) -> Any:
        """Compute the gradients of the last micro-batch, and then the means."""
        self._gradients.begin()
        with rejected(self._reject):
            original(loss, module, optimizer, *rest)
        self._take(self._share.downwards[-1])
        self._gradients.end()
        self._buffers.spread()
        self._fit.seed_all_at("micro-batches end", *self._place())

    def _take(self, virtual: int) -> None:
        try:
            self._gradients.take(virtual, self._weights[virtual])
        except SparseGradient:
            self._fit.refuse(*SPARSE)

    def _place(self) -> tuple[int, int]:
        return self._framework.epoch, self._framework.batch - 1  # Lightning has counted the batch

    def _moved(self, part: Any) -> Any:
        """Move a micro-batch to the device, as Lightning moves a batch."""
        part = self._trainer.precision_plugin.convert_input(part)
        part = self._module._on_before_batch_transfer(part, dataloader_idx=0)
        return self._trainer.strategy.batch_to_device(part, dataloader_idx=0)

    def _changes_batches(self) -> bool:
        """Return True if the script has hooks that may draw random numbers for a batch."""
        base = next(cls for cls in type(self._module).__mro__ if cls.__name__ == "LightningModule")
        return any(getattr(type(self._module), name) is not getattr(base, name) for name in TRANSFERS)

    def _counts(self) -> list[int]:
        return [metric._update_count for metric in self._metrics]

    # --- what is logged

    def _log(self, original: Callable[..., None], name: str, value: Any, *args: Any, **how: Any) -> None:
        if how.get("sync_dist") and how.get("reduce_fx", "mean") not in MEAN:
            self._fit.refuse(
                f"the job is elastic, and {name} is logged with reduce_fx={how['reduce_fx']!r} and sync_dist=True",
                'log it with reduce_fx="mean"',
            )
        if self._virtual is None:
            if how.get("sync_dist") and isinstance(value, int | float | Tensor):
                value = self._of_rank_0(value)
            original(name, value, *args, **how | {"sync_dist": False})
            return
        if not (isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)):
            self._fit.refuse(
                f"the job is elastic, and training_step logs a {type(value).__name__} as {name}",
                "log a number: self.log(name, value, sync_dist=True)",
            )
        self._means.add(self._virtual, float(value))
        self._logged.append((name, value, {**dict(zip(("prog_bar",), args, strict=False)), **how}))

    def _of_rank_0(self, value: Any) -> Any:
        """Return rank 0's value on every rank. It is that of virtual rank 0 if it comes from the newest batch."""
        if self._share.processes == 1:
            return value
        shared = torch.as_tensor(value, device=self._trainer.strategy.root_device).detach().clone()
        distributed.broadcast(shared, 0)
        return shared

    def _log_all(self) -> None:
        """Log what the last micro-batch has logged, with the values that all processes have."""
        means = self._means.tensors
        try:
            self._means.end(self._weights)
        except DifferentCalls:
            self._fit.refuse(*UNEVEN_LOGS)
        for (name, value, how), mean, first in zip(self._logged, means, self._means.of_first, strict=True):
            found: Any = float(mean) if how.get("sync_dist") else first
            if isinstance(value, Tensor):
                found = torch.tensor(found, dtype=value.dtype, device=value.device)
            size = {"batch_size": how.get("batch_size") or self._samples_of_first}
            self._module.log(name, found, **how | {"sync_dist": False} | size)

    # --- refused calls

    def _reject(self, name: str) -> NoReturn:
        if name not in COLLECTIVE:
            self._fit.refuse(
                f"the job is elastic, and training_step calls {name}()", "leave it to Lightning, which calls it"
            )
        self._fit.refuse(
            f"training_step calls torch.distributed.{name}, and processes may have different numbers of micro-batches",
            "log with sync_dist=True, and use BatchNorm in place of SyncBatchNorm",
        )
