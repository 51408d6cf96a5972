"""The iterator over a loader that a script keeps in its own variables, as part of the Python state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, default_collate


class KeptIterator(Iterator[Any]):
    """
    An iterator over a map-style loader that the script itself has begun, and that a resume continues: it has read
    `number` batches of the pass that `key` determines. After a restore, the pass is begun again at the next read.
    """

    begin: ClassVar[Callable[[Any, int, int], Iterator[Any]]]
    """Begins the pass `key` over a loader at a batch. The module that replaces the loaders' iterators sets it."""

    def __init__(self, loader: Any, key: int, number: int = 0) -> None:
        self.loader = loader
        self.key = key
        self.number = number
        self._batches: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches = type(self).begin(self.loader, self.key, self.number)
        batch = next(self._batches)
        self.number += 1
        return batch

    def __len__(self) -> int:
        return len(self.loader)

    def move(self, loader: Any, key: int, number: int) -> None:
        """Continue at this place of a pass, whatever was read before."""
        self.loader, self.key, self.number, self._batches = loader, key, number, None


def options_of(loader: Any) -> dict[str, Any] | None:
    """
    Return the arguments that make a loader like this one over the same dataset, if they are plain: no functions, no
    generator and no sampler of the script. None for any other loader.
    """
    if type(loader) is not DataLoader or type(loader.batch_sampler) is not BatchSampler:
        return None
    sampler: Any = loader.sampler
    drawn = type(sampler) is RandomSampler and (sampler.replacement, len(sampler)) == (False, len(sampler.data_source))
    usual = loader.collate_fn is default_collate and loader.worker_init_fn is None and loader.generator is None
    if not usual or not (drawn or type(sampler) is SequentialSampler) or sampler.data_source is not loader.dataset:
        return None
    plain = {name: getattr(loader, name) for name in ("batch_size", "drop_last", "num_workers", "pin_memory")}
    return {**plain, "shuffle": drawn}
