"""Iterators over loaders that a script keeps: their order, their place, and what they leave as it was."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from spotrun.training.data import kept_iterators
from spotrun.training.python_state.kept_iterator import KeptIterator
from tests.support.script_process import Process, carried


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    kept_iterators.install()


class Noisy(Dataset[Tensor]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(1) + random.random()


def loader(**options: Any) -> DataLoader[Tensor]:
    return DataLoader(Noisy(), **{"batch_size": 2, "shuffle": True, **options})


def as_lists(batches: Iterator[Tensor]) -> list[Any]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("read", range(7))
def test_a_moved_iterator_gives_the_rest(read: int) -> None:
    own = loader(generator=torch.Generator().manual_seed(3))
    first = iter(own)
    assert isinstance(first, KeptIterator)
    given = as_lists(first)
    assert len(given) == len(first) == 6
    torch.rand(5)
    generator = own.generator.get_state()
    states = random.getstate(), torch.get_rng_state()
    second = KeptIterator(loader(generator=torch.Generator()), 0)
    second.move(own, first.key, read)
    assert as_lists(second) == given[read:]
    assert torch.equal(own.generator.get_state(), generator), "as it is in the process that was not interrupted"
    assert (random.getstate(), torch.get_rng_state().tolist()) == (states[0], states[1].tolist())


def test_each_iterator_has_an_order_of_its_own_and_draws_as_pytorch_does() -> None:
    own = loader()
    torch.manual_seed(1)
    one, other = as_lists(iter(own)), as_lists(iter(own))
    assert one != other
    torch.manual_seed(1)
    for _ in range(2):
        torch.empty((), dtype=torch.int64).random_()
    expected = torch.rand(1)
    torch.manual_seed(1)
    iter(own), iter(own)
    assert torch.equal(torch.rand(1), expected)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class NoLength:
    def __iter__(self) -> Iterator[int]:
        return iter([2, 0])


def test_streams_and_samplers_without_a_length_are_read_as_before() -> None:
    assert not isinstance(iter(DataLoader(Stream())), KeptIterator)
    own = DataLoader([5, 6, 7], sampler=NoLength())  # type: ignore[arg-type,var-annotated]
    assert [batch.item() for batch in own] == [7, 5]


def test_a_loader_that_another_thread_reads_is_read_as_before() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert not isinstance(pool.submit(iter, loader()).result(), KeptIterator)


def test_iterators_come_back_at_their_place() -> None:
    """One that was there, at the place of a made one; one that is made, which two attributes and a list share."""
    expected: list[Any] = []

    def change(process: Process) -> None:
        next(process.net.reading), next(process.net.reading)
        process.net.again = process.net.both = iter(process.net.loader)
        process.net.listed = [process.net.again, process.net.reading]
        next(process.net.again)
        rest = [copy.copy(process.net.reading), copy.copy(process.net.again)]
        for one in rest:
            one.move(one.loader, one.key, one.number)
        expected.extend(map(as_lists, rest))

    def made() -> dict[str, Any]:
        torch.manual_seed(4)
        own = loader()
        return {"loader": own, "reading": iter(own)}

    net = carried(change, made).net
    assert net.listed[0] is net.again is net.both
    assert net.listed[1] is net.reading
    assert [as_lists(net.reading), as_lists(net.again)] == expected


def test_the_next_pass_is_the_same_although_only_the_loader_holds_its_generator() -> None:
    def change(process: Process) -> None:
        process.net.reading = iter(process.net.loader)

    def made() -> dict[str, Any]:
        return {"loader": loader(generator=torch.Generator().manual_seed(5))}

    first = Process(**made()).begun()
    change(first)
    assert as_lists(iter(carried(change, made).net.loader)) == as_lists(iter(first.net.loader))


@pytest.mark.parametrize("around", [enumerate, zip, partial(map, float), partial(filter, None)], ids=repr)
def test_an_iterator_of_python_that_reads_one_is_named(around: Any) -> None:
    own = loader(batch_size=1)
    process = Process(loader=own, around=around(iter(own))).begun()
    next(process.net.around)
    process.state.dump()
    assert [lost.path for lost in process.state.news()] == ["module.around"]


def test_one_over_a_plain_loader_that_was_made_during_training_comes_back() -> None:
    expected: list[Any] = []

    def change(process: Process) -> None:
        process.net.reading = iter(DataLoader(process.net.data, batch_size=3, shuffle=True, drop_last=True))
        next(process.net.reading)
        rest = copy.copy(process.net.reading)
        rest.move(rest.loader, rest.key, rest.number)
        expected.extend(as_lists(rest))

    assert as_lists(carried(change, lambda: {"data": Noisy()}).net.reading) == expected != []


@pytest.mark.parametrize("options", [{"collate_fn": list}, {"generator": torch.Generator()}, {"sampler": [1, 2]}])
def test_one_over_another_loader_that_was_made_during_training_is_named(options: dict[str, Any]) -> None:
    process = Process(data=Noisy()).begun()
    process.net.reading = iter(DataLoader(process.net.data, **options))
    process.state.dump()
    assert [(lost.path, lost.what) for lost in process.state.news()] == [
        ("module.reading", "an iterator over a DataLoader that was made during training")
    ]
