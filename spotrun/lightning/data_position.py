"""
The exact data position: order = f(seed, epoch), plus an integer.

`exact_loader` makes a copy of a user's DataLoader that begins each epoch at any batch, without reading what comes
before. The order of an epoch is drawn anew with generators seeded by (seed, epoch); each sample is read, and each
batch collated, under generators seeded by its place. So neither workers, nor prefetching, nor what the training
drew, nor a new process matters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from spotrun.lightning import seeds

Position = Callable[[], tuple[tuple[object, ...], int]]
"""Where the pass that begins now begins: what names the pass ("train", epoch), and the first batch to give."""


@dataclass(frozen=True)
class Keyed:
    """One batch's indices (or the one index of a loader without batches), and the seed of its place."""

    indices: Any
    seed: int


class KeyedBatch(list[Any]):
    """As Keyed, for loaders that hand a list to the dataset."""

    seed: int

    def __init__(self, indices: Sequence[Any], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __reduce__(self) -> Any:
        return KeyedBatch, (list(self), self.seed)


@dataclass(frozen=True)
class Read:
    """What the dataset gave, on its way to the collate function, which is to draw from the same place."""

    samples: Any
    seed: int


class _Stand:
    """
    Stands in for an object: everything but what the subclass defines is the object's own, `isinstance` included.

    Setting an attribute sets it on the object.
    """

    _inner: Any

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "_inner", inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # while it is being unpickled in a worker
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    def __reduce__(self) -> Any:
        return type(self), (self._inner,)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._inner)


class ExactDataset(_Stand):
    """A map-style dataset whose samples are read under generators seeded by the place of the sample in its epoch."""

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not Keyed:
            return self._inner[index]
        with _untouched():
            seeds.seed_cpu(seeds.derive(index.seed, 0))
            return Read(self._inner[index.indices], index.seed)

    def __getitems__(self, indices: Any) -> Any:
        if type(indices) is not KeyedBatch:
            return self._read_batch(indices)
        with _untouched():
            seeds.seed_cpu(seeds.derive(indices.seed, 0))
            return Read(self._read_batch(indices, indices.seed), indices.seed)

    def _read_batch(self, indices: Sequence[Any], seed: int | None = None) -> Any:
        if getattr(self._inner, "__getitems__", None):
            return self._inner.__getitems__(list(indices))
        samples = []
        for place, index in enumerate(indices):
            if seed is not None:
                seeds.seed_cpu(seeds.derive(seed, place))
            samples.append(self._inner[index])
        return samples


class ExactCollate(_Stand):
    """A collate function that draws (mixup and its kin) from generators seeded by the batch's place."""

    def __call__(self, read: Any) -> Any:
        if type(read) is not Read:
            return self._inner(read)
        with _untouched():
            seeds.seed_cpu(seeds.derive(read.seed, "collate"))
            return self._inner(read.samples)


class ExactOrder:
    """
    In place of a (batch) sampler: the same indices in an order that is a function of seed and epoch, from any batch
    on.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, position: Position) -> None:
        self._batched = loader.batch_sampler is not None
        self._inner: Any = loader.batch_sampler if self._batched else loader.sampler
        self._generators = _generators(loader)
        self._seed = seed
        self._position = position
        self._order: list[Any] = []
        self.begun: tuple[tuple[object, ...], int] | None = None

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[Keyed | KeyedBatch]:
        self.begun = key, first = self._position()
        self._order = self._draw(key)
        return self._from(key, first, self._order)

    def samples(self, batches: int) -> int:
        """How many samples the first `batches` batches of the current pass hold."""
        return sum(map(len, self._order[:batches])) if self._batched else batches

    def indices(self, batch: int) -> Any:
        """What the sampler gave for one batch of the current pass; the trace of `verify-resume` tells it."""
        return self._order[batch]

    def _draw(self, key: tuple[object, ...]) -> list[Any]:
        seed = seeds.derive(self._seed, *key, "order")
        with seeds.kept():
            seeds.seed_cpu(seed)
            for generator in self._generators:
                generator.manual_seed(seed)
            for sampler in {id(s): s for s in (self._inner, getattr(self._inner, "sampler", None))}.values():
                if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                    set_epoch(key[1])
            return list(self._inner)

    def _from(self, key: tuple[object, ...], first: int, order: list[Any]) -> Iterator[Keyed | KeyedBatch]:
        kind = KeyedBatch if self._batched else Keyed
        for number in range(first, len(order)):
            yield kind(order[number], seeds.derive(self._seed, *key, "batch", number))


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    holders = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = (getattr(holder, "generator", None) for holder in holders)
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _untouched() -> Any:
    """In the main process, loading must not move the training's generators; a worker has nothing else to draw for."""
    return nullcontext() if get_worker_info() is not None else seeds.kept()


def why_inexact(loader: object) -> tuple[str, str] | None:
    """Why the position in `loader` cannot be kept exactly, and what to do instead; None where it can."""
    if not isinstance(loader, DataLoader):
        return (
            f"the training data is a {type(loader).__name__}, not a torch DataLoader",
            "wrap it in torch.utils.data.DataLoader",
        )
    if isinstance(loader.dataset, IterableDataset):
        return (
            f"{type(loader.dataset).__name__} is an IterableDataset: it cannot begin in the middle of an epoch",
            "use a map-style dataset (__getitem__ and __len__)",
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"{type(loader).__name__} iterates in a way of its own", "use torch.utils.data.DataLoader itself"
    try:
        len(loader)
    except TypeError:
        return "the training DataLoader's sampler has no length", "give the sampler a __len__"
    return None


def exact_loader(loader: DataLoader[Any], seed: int, position: Position) -> DataLoader[Any]:
    """
    A copy of `loader` with an exact position; `why_inexact(loader)` must be None. The user's loader stays as it is.
    """
    exact = copy.copy(loader)
    order = ExactOrder(loader, seed, position)
    changes: dict[str, Any] = {"batch_sampler" if loader.batch_sampler is not None else "sampler": order}
    changes |= {
        "dataset": ExactDataset(loader.dataset),
        "collate_fn": ExactCollate(loader.collate_fn),
        "_iterator": None,
    }
    # Lightning asks a loader for its state to find out whether it should warn about resuming in mid-epoch.
    changes |= {"state_dict": dict, "load_state_dict": lambda state: None}
    for name, value in changes.items():
        object.__setattr__(exact, name, value)  # DataLoader.__setattr__ forbids these
    return exact


def order_of(loader: object) -> ExactOrder | None:
    orders = (getattr(loader, name, None) for name in ("batch_sampler", "sampler"))
    return next((order for order in orders if isinstance(order, ExactOrder)), None)
