"""Samples and batches of an exact loader draw by their place, whatever holds them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from spotrun.training import seeds
from spotrun.training.data.data_order import exact_copy

COUNT, BATCH = 12, 3


class Rows:
    """A data set with code of the script's, which could draw."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)

    def __len__(self) -> int:
        return COUNT


def drawn() -> tuple[float, ...]:
    return random.random(), np.random.random(), torch.rand(()).item()


def collate(samples: list[Any]) -> Any:
    return [int(sample) for sample in samples], *drawn()


def first(samples: list[Any]) -> Any:
    return collate([sample for (sample,) in samples])


def batches(loader: DataLoader[Any], begins: int = 0) -> Iterator[Any]:
    return iter(exact_copy(loader, 7, 0, lambda: (("train", 0), begins)))


STORED = {
    "a list": DataLoader([torch.tensor(n) for n in range(COUNT)], BATCH, shuffle=True, collate_fn=collate),
    "tensors": DataLoader(TensorDataset(torch.arange(COUNT)), BATCH, shuffle=True, collate_fn=first),
}
CODED = DataLoader(Rows(), BATCH, shuffle=True, collate_fn=collate)


@pytest.mark.parametrize("kind", STORED)
def test_batches_are_the_same_whether_samples_lie_there_or_code_reads_them(kind: str) -> None:
    random.seed(3)
    before = random.getstate()
    assert list(batches(STORED[kind])) == list(batches(CODED))
    assert random.getstate() == before
    assert list(batches(STORED[kind], 2)) == list(batches(CODED))[2:]


@pytest.mark.parametrize(("loader", "each"), [*((loader, 1) for loader in STORED.values()), (CODED, 2 + BATCH)])
def test_generators_are_seeded_for_a_sample_only_if_it_could_draw(
    monkeypatch: pytest.MonkeyPatch, loader: DataLoader[Any], each: int
) -> None:
    """Beside the one time for the batch, as its collate function may draw."""
    reading = batches(loader)
    seeded: list[int] = []
    seed_cpu = seeds.seed_cpu
    monkeypatch.setattr(seeds, "seed_cpu", lambda seed: (seeded.append(seed), seed_cpu(seed)))
    assert len(list(reading)) == COUNT // BATCH
    assert len(seeded) == each * COUNT // BATCH


def test_a_generator_that_the_script_keeps_with_its_tensors_goes_by_place_too() -> None:
    """A collate function of the script's may draw from it."""
    data: Any = TensorDataset(torch.arange(COUNT))
    data.noise = torch.Generator().manual_seed(1)
    loader = DataLoader(data, BATCH, collate_fn=lambda samples: torch.rand(2, generator=data.noise).tolist())
    straight = list(batches(loader))
    assert straight[0] != straight[1]
    data.noise.manual_seed(2)
    assert list(batches(loader, 2)) == straight[2:]


class Noisy(torch.Tensor):
    """Draws whenever it is indexed."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found + random.random() if func is torch.Tensor.__getitem__ else found


def test_a_tensor_with_code_of_its_own_draws_by_place() -> None:
    data = TensorDataset(torch.zeros(COUNT).as_subclass(Noisy))
    loader = DataLoader(data, BATCH, collate_fn=lambda samples: [float(sample) for (sample,) in samples])
    straight = list(batches(loader))
    assert len({value for batch in straight for value in batch}) == COUNT
    random.seed(5)
    assert list(batches(loader, 1)) == straight[1:]
