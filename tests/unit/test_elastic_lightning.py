"""What a Lightning Trainer of an elastic job cannot do is found before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, TensorDataset

from spotrun.lightning.connectors.elastic import problem, widened

DATA = TensorDataset(torch.arange(10))


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(10))


class Own(BatchSampler):
    pass


class StochasticWeightAveraging:
    """Known by its name."""


def trainer(module: nn.Module, *, automatic: bool = True, callbacks: Sequence[Any] = (), **strategy: Any) -> Any:
    module.automatic_optimization = automatic
    return SimpleNamespace(lightning_module=module, callbacks=callbacks, strategy=SimpleNamespace(**strategy))


def test_automatic_optimization_with_batch_norm_is_no_problem() -> None:
    assert problem(trainer(nn.BatchNorm1d(2), _layer_sync=None)) is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (trainer(nn.Linear(1, 1), automatic=False), "optimizes manually"),
        (trainer(nn.SyncBatchNorm(2)), "SyncBatchNorm"),
        (trainer(nn.BatchNorm1d(2), _layer_sync=object()), "SyncBatchNorm"),
        (trainer(nn.Linear(1, 1), callbacks=[StochasticWeightAveraging()]), "StochasticWeightAveraging"),
    ],
)
def test_problem_is_named_with_what_to_write(found: Any, reason: str) -> None:
    named = problem(found)
    assert named is not None
    assert reason in named.reason
    assert named.hint


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [6, 4]), (True, [6])])
def test_batch_of_all_virtual_ranks_is_as_many_times_as_large(drop_last: bool, sizes: list[int]) -> None:
    loader = DataLoader(DATA, 2, drop_last=drop_last)
    wide = widened(loader, 3)
    assert [len(batch) for (batch,) in wide] == sizes
    assert (len(wide), len(loader), loader.batch_sampler.batch_size) == (len(sizes), 5, 2), "the script's is as it was"


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), 2),
        DataLoader(DATA, batch_size=None),
        DataLoader(DATA, batch_sampler=Own(RandomSampler(DATA), 2, drop_last=False)),
        DataLoader(DATA, 2, sampler=DistributedSampler(DATA, 2, 0)),
        [1, 2, 3],
    ],
)
def test_loader_whose_batches_cannot_be_divided_is_none(loader: Any) -> None:
    assert widened(loader, 2) is None
