"""
Reads data that has no index: an IterableDataset, or any other iterable of batches.

Before each sample is read, the random number generators are seeded with the sample's position. So reading the stream
again gives the same batches. A resume in the middle of a stream calls the stream's `load_state_dict`. If the stream has
no such method, the samples before that position are read again and skipped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from spotrun.training import seeds
from spotrun.training.data import generators
from spotrun.training.data.data_order import changed, notes_for
from spotrun.training.data.in_workers import Notes, Watch
from spotrun.training.data.proxy import Proxy


def has_state(value: object) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def is_read_once(loader: object) -> bool:
    """
    Return True if `loader` can be read only once: it is an iterator, such as a generator, and has no state that could
    be restored. Another pass over it continues where the last one stopped.
    """
    data = loader.dataset if isinstance(loader, DataLoader) and not loader.num_workers else loader
    return isinstance(data, Iterator) and not has_state(loader) and not has_state(data)


class SeededStream(Proxy):
    """
    An IterableDataset. Before it reads a sample, it seeds the random number generators with the pass, the worker and
    the sample's number.

    `place` identifies the current pass. It is in shared memory, so that a worker that reads for several passes sees
    when a new one begins. At the start of each pass, a worker checks whether its copy of the dataset has changed since
    its first pass, and records changes in `notes`.
    """

    def __init__(self, inner: Any, seed: int, rank: int, place: Tensor, notes: Notes | None = None) -> None:
        super().__init__(inner)
        object.__setattr__(self, "_rank", rank)
        object.__setattr__(self, "_root", seed)
        object.__setattr__(self, "_place", place)
        object.__setattr__(self, "_given", 0)
        object.__setattr__(self, "_watch", None if notes is None else Watch(inner, notes))

    def __reduce__(self) -> Any:
        notes = None if self._watch is None else self._watch.notes
        return type(self), (self._inner, self._root, self._rank, self._place, notes)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        place = self._place.tolist()
        root = seeds.derive(self._root, *place, worker.id if worker else 0)
        begun = given = self._first(place)
        own = generators.kept_by(dataset=self._inner)
        samples = iter(self._inner)
        while True:
            # Before the first sample, some datasets shuffle all data on every rank, and then each rank reads its share.
            # All ranks must shuffle in the same way, so the seed of the first sample does not include the rank.
            seed = seeds.derive(root, given, self._rank if given else 0)
            seeds.seed_cpu(seed)
            generators.seed(own, seed)
            try:
                sample = next(samples)
            except StopIteration:
                return
            if worker is not None and self._watch is not None and given == begun:
                self._watch.look(worker.id)
            given += 1
            object.__setattr__(self, "_given", given)
            yield sample

    def __len__(self) -> int:
        return len(self._inner)

    def _first(self, place: list[int]) -> int:
        return 0


class SeededStatefulStream(SeededStream):
    """
    A SeededStream of a dataset that has its own state. `state_dict` returns that state, and the number of samples that
    the dataset has returned so far.
    """

    _resumed: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given, "place": self._place.tolist(), "dataset": state_of(self._inner)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state["dataset"])
        object.__setattr__(self, "_resumed", state)

    def _first(self, place: list[int]) -> int:
        state = self._resumed
        object.__setattr__(self, "_resumed", None)
        return state["given"] if state and state["place"] == place else 0


@dataclass(frozen=True)
class Stream:
    """
    A loader, and the objects whose `state_dict` contains its position. A snapshot within a pass saves the state of
    `inside`, and a snapshot between two passes saves the state of `between`.

    Both are None if the loader has no state. In this case, a training that resumes within a pass reads the pass again
    from its first batch.
    """

    loader: Any
    place: Tensor
    inside: Any = None
    between: Any = None


def stream(loader: Any, seed: int, rank: int) -> Stream:
    """
    Return `loader` as a `Stream`: a DataLoader over an IterableDataset is copied, any other iterable is used directly.
    """
    place = torch.zeros(3, dtype=torch.int64)
    place.share_memory_()  # type: ignore[no-untyped-call]
    if not (isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)):
        state = loader if has_state(loader) else None
        return Stream(loader, place, inside=state, between=state)
    kind = SeededStatefulStream if has_state(loader.dataset) else SeededStream
    dataset = kind(loader.dataset, seed, rank, place, notes_for(loader))
    exact = changed(loader, {"dataset": dataset, "_iterator": None})
    here = dataset if isinstance(dataset, SeededStatefulStream) and not loader.num_workers else None
    return Stream(exact, place, inside=exact if has_state(exact) else here, between=here)


def state_of(holder: Any) -> Any:
    """Return a deep copy of what the holder's `state_dict` returns, because a dataset may later change a list in it."""
    return copy.deepcopy(holder.state_dict())
