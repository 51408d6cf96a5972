"""
Restores a training's exact position in its data. The order of the data depends only on the seed and the epoch, so the
position is a single number: the next batch.

`exact_copy` copies a user's DataLoader. The copy can start an epoch at any batch, without reading the batches before
it. This is possible because all random number generators are seeded again at two points: before an epoch's order is
drawn, with the seed and the epoch; and before a sample or batch is read or collated, with its position. So the data
depends neither on the process, the number of workers or the prefetching, nor on the random numbers that the training
itself draws.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, get_worker_info

from spotrun.training import seeds
from spotrun.training.data import generators
from spotrun.training.data.generators import OwnGenerators
from spotrun.training.data.in_workers import Notes, Watch
from spotrun.training.data.proxy import Proxy
from spotrun.training.data.samplers import Drawn, Samplers
from spotrun.training.elastic.virtual_ranks import Share

Position = Callable[[], tuple[tuple[object, ...], int]]
"""
A function that the loader calls when a pass (one iteration over it) begins. It returns the pass's key, such as
("train", epoch), and the number of the batch to start at.
"""


@dataclass(frozen=True)
class Keyed:
    """
    The indices of one batch, and a seed derived from the batch's position. If the loader does not batch its samples,
    `indices` is a single index.
    """

    indices: Any
    seed: int


class KeyedBatch(list[Any]):
    """A variant of `Keyed` that is itself a list, for loaders whose batch sampler yields lists of indices."""

    seed: int

    def __init__(self, indices: Sequence[Any], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __reduce__(self) -> Any:
        return KeyedBatch, (list(self), self.seed)


@dataclass(frozen=True)
class SeededSamples:
    """Samples for the collate function, and the seed of their batch."""

    samples: Any
    seed: int


class ExactDataset(Proxy):
    """
    A map-style dataset. Before it reads a sample, it seeds the random number generators with the sample's position in
    the epoch. In a worker process, it also records in `notes` each change of the worker's copy of the dataset.
    """

    _watch: Watch | None

    def __init__(self, inner: Any, notes: Notes | None = None) -> None:
        super().__init__(inner)
        object.__setattr__(self, "_watch", None if notes is None else Watch(inner, notes))

    def __reduce__(self) -> Any:
        return type(self), (self._inner, None if self._watch is None else self._watch.notes)

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not Keyed:
            return self._inner[index]
        with _untouched():
            _seed(self._own(), index.seed, 0)
            read = SeededSamples(self._inner[index.indices], index.seed)
            self._is_read()
            return read

    def __getitems__(self, indices: Any) -> Any:
        if type(indices) is not KeyedBatch:
            return self._read_batch(indices)
        own = self._own()
        draws = bool(own) or not _reads_without_code(self._inner)
        with _untouched() if draws else nullcontext():
            if draws:
                _seed(own, indices.seed, 0)
            read = SeededSamples(self._read_batch(indices, own if draws else None, indices.seed), indices.seed)
            self._is_read()
            return read

    def _is_read(self) -> None:
        worker = get_worker_info()
        if worker is not None and self._watch is not None:
            self._watch.batch_is_read(worker.id)

    def _read_batch(self, indices: Sequence[Any], own: OwnGenerators | None = None, seed: int = 0) -> Any:
        if getattr(self._inner, "__getitems__", None):
            return self._inner.__getitems__(list(indices))
        samples = []
        for place, index in enumerate(indices):
            if own is not None:
                _seed(own, seed, place)
            samples.append(self._inner[index])
        return samples

    def _own(self) -> OwnGenerators:
        """
        Return the dataset's random number generators. They are looked up for each batch, because a dataset may create
        them only when it reads the first sample.
        """
        return generators.kept_by(dataset=self._inner)


def _reads_without_code(dataset: object) -> bool:
    """
    Return True if reading a sample from `dataset` is only a look-up, which draws no random numbers. In this case, the
    three random number generators are not seeded: that would take ten microseconds, much longer than a look-up.
    """
    if type(dataset) is TensorDataset:
        return all(type(tensor) is Tensor for tensor in dataset.tensors)
    return type(dataset) in (list, tuple)


class ExactCollate(Proxy):
    """
    A collate function that may draw random numbers, as mixup does. So before each call, the random number generators
    are seeded with the batch's position.
    """

    def __call__(self, read: Any) -> Any:
        if type(read) is not SeededSamples:
            return self._inner(read)
        with _untouched():
            _seed(generators.kept_by(collate=self._inner), read.seed, "collate")
            return self._inner(read.samples)


def _seed(own: OwnGenerators, seed: int, place: object) -> None:
    number = seeds.derive(seed, place)
    seeds.seed_cpu(number)
    generators.seed(own, number)


class ExactOrder:
    """
    A replacement for a sampler or batch sampler. It yields the same indices, in an order that depends only on the seed
    and the epoch. With `share`, it yields in place of each batch the micro-batches of this process's virtual ranks.
    """

    def __init__(
        self, loader: DataLoader[Any], seed: int, rank: int, position: Position, share: Share | None = None
    ) -> None:
        self._batched = loader.batch_sampler is not None
        self._inner: Any = loader.batch_sampler if self._batched else loader.sampler
        self._own = order_generators(loader)
        self._seed = seed
        self._rank = rank
        self._share = share
        self._position = position
        self.samplers = Samplers(self._inner)
        self._order: Drawn = Drawn(iter(()))

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[Keyed | KeyedBatch]:
        key, first = self._position()
        self._order = self._draw(key)
        return self._from(key, first, self._order)

    @property
    def is_drawn(self) -> bool:
        """
        True if the order of the current pass has been drawn completely, so that it needs no random number generator any
        more.
        """
        return self._order.is_whole

    def samples(self, batches: int) -> int:
        """Return the number of samples in the first `batches` batches of the current pass."""
        return self._order.samples(batches) if self._batched else batches

    def indices(self, batch: int) -> Any:
        """
        Return the indices that the sampler chose for one batch of the current pass, for the trace of `verify-resume`.
        """
        return self._order.at(batch)

    def has(self, batch: int) -> bool:
        """Return True if the current pass has a batch of this number."""
        try:
            self._order.at(batch)
        except IndexError:
            return False
        return True

    def _draw(self, key: tuple[object, ...]) -> Drawn:
        seed = seeds.derive(self._seed, *key, "order")
        with seeds.kept():
            seeds.seed_cpu(seed)
            generators.seed(self._own, seed)
            self.samplers.begin(key)
            if key[0] != "kept":  # of an iterator of the script, which sets its sampler's epoch itself
                self.samplers.set_epoch(key[1])
            order = Drawn(iter(self._inner))
            self.samplers.drawn()
            return order

    def _from(self, key: tuple[object, ...], first: int, order: Drawn) -> Iterator[Keyed | KeyedBatch]:
        kind = KeyedBatch if self._batched else Keyed
        for number in count(first):
            try:
                indices = order.at(number)
            except IndexError:
                return
            if self._share is None:
                yield kind(indices, seeds.derive(self._seed, *key, self._rank, "batch", number))
                continue
            for virtual in self._share.downwards:
                part = part_of(indices, virtual, self._share.total)
                yield KeyedBatch(part, seeds.derive(self._seed, *key, virtual, "batch", number))


def part_of(indices: Sequence[Any], virtual_rank: int, total: int) -> Sequence[Any]:
    """
    Return the indices of one virtual rank's micro-batch. If the batch has fewer samples than there are virtual ranks,
    the last ones repeat a sample, which then has no weight (`weights_of`).
    """
    whole = list(indices)
    return whole[virtual_rank::total] or [whole[virtual_rank % len(whole)]]


def weights_of(samples: int, total: int) -> dict[int, float]:
    """
    Return the weight of each virtual rank's micro-batch in the mean over a batch of `samples`: the number of its
    samples, divided by the mean number.
    """
    return {virtual: len(range(virtual, samples, total)) * total / samples for virtual in range(total)}


def notes_for(loader: DataLoader[Any]) -> Notes | None:
    """
    Return shared memory in which the workers of `loader` record changes to their copies of the dataset, because this
    process cannot see these changes. Return None if the loader has no workers: this process then reads the dataset
    itself.
    """
    return Notes(loader.num_workers) if loader.num_workers else None


def order_generators(loader: object) -> OwnGenerators:
    """Return the random number generators that determine the order of the data and the workers' seeds."""
    if not isinstance(loader, DataLoader):
        return generators.kept_by(loader=loader)
    return generators.kept_by(sampler=loader.sampler, batch_sampler=loader.batch_sampler, loader=loader.generator)


def _untouched() -> Any:
    """
    Return a context manager that keeps data loading from changing the training's random number generators. In a worker,
    which has generators of its own, it does nothing.
    """
    return nullcontext() if get_worker_info() is not None else seeds.kept()


def exact_copy(
    loader: DataLoader[Any], seed: int, rank: int, position: Position, share: Share | None = None
) -> DataLoader[Any]:
    """
    Return a copy of `loader` that can begin at any batch. `loader` must have a length and a map-style dataset. With
    `share`, it must have batches, and the copy reads this process's micro-batches of each (`ExactOrder`).

    The samples have the same order on all ranks, and each rank's sampler picks the rank's share. The seeds with which
    samples are read differ from rank to rank.
    """
    order = ExactOrder(loader, seed, rank, position, share)
    changes: dict[str, Any] = {"batch_sampler" if loader.batch_sampler is not None else "sampler": order}
    changes |= {
        "dataset": ExactDataset(loader.dataset, notes_for(loader)),
        "collate_fn": ExactCollate(loader.collate_fn),
        "_iterator": None,
    }
    return changed(loader, changes)


def changed(loader: DataLoader[Any], changes: dict[str, Any]) -> DataLoader[Any]:
    """Return a copy of `loader` with the attributes `changes`, which DataLoader's own `__setattr__` would reject."""
    loader = copy.copy(loader)
    for name, value in changes.items():
        object.__setattr__(loader, name, value)
    return loader


def order_of(loader: object) -> ExactOrder | None:
    orders = (getattr(loader, name, None) for name in ("batch_sampler", "sampler"))
    return next((order for order in orders if isinstance(order, ExactOrder)), None)
