"""A stream without a state is read again up to its place; what it gives then is compared with what it gave before."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from spotrun.training.data.loader import ExactLoader
from spotrun.training.data.marks import mark_of
from spotrun.training.place import PassStart


class Counts:
    """A collate function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        return torch.stack(samples)


class Memory(IterableDataset):
    def __init__(self, items: list[float]) -> None:
        self.items = torch.tensor(items)
        self.passes, self.notes = 0, list[float]()

    def __iter__(self):
        self.passes += 1
        for item in self.items:
            yield item.view(1) + torch.rand(1) + self.passes


def begun(items: list[float], batch: int, state: dict[str, Any] | None = None) -> ExactLoader:
    one = ExactLoader(DataLoader(Memory(items), 2), 1, 0, lambda _: PassStart(0, batch), lambda _: False)
    one.resume(state)
    return one


def place_after(batches: int) -> dict[str, Any] | None:
    one = begun([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0)
    read = iter(one.proxy)
    for _ in range(batches):
        next(read)
    return one.state(0, batches, epoch_ended=False)


def test_a_stream_that_gives_the_same_again_is_not_named() -> None:
    one = begun([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, place_after(2))
    assert next(iter(one.proxy)).shape == (2, 1)
    assert not one.gave_others


def test_a_stream_that_reads_what_the_training_changes_is_seen() -> None:
    one = begun([1.0, 2.0, 3.0, 9.0, 5.0, 6.0], 2, place_after(2))
    iter(one.proxy)
    assert one.gave_others


def test_values_of_a_stream_are_those_from_the_beginning_of_the_pass() -> None:
    one = begun([1.0, 2.0, 3.0, 4.0], 0)
    for number in (1, 2):
        read = iter(one.proxy)
        next(read)
        state = one.state(0, 1, epoch_ended=False)
        again = begun([1.0, 2.0, 3.0, 4.0], 1, state)
        rest = iter(again.proxy)
        assert (one.loader.dataset.passes, again.loader.dataset.passes) == (number, number)
        assert torch.equal(next(read), next(rest))
        assert not again.gave_others


def test_value_that_the_training_itself_changes_is_seen() -> None:
    one = begun([1.0, 2.0, 3.0, 4.0], 0)
    next(iter(one.proxy))
    one.loader.dataset.notes.append(0.5)
    again = begun([1.0, 2.0, 3.0, 4.0], 1, one.state(0, 1, epoch_ended=False))
    iter(again.proxy)
    assert again.gave_others


class Curriculum(Dataset):
    def __init__(self) -> None:
        self.level = 1.0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index * self.level])


def test_persistent_workers_keep_the_dataset_that_they_copied() -> None:
    """The training process changes it later: neither its own workers nor those of a resumed process see that."""

    def process(state: dict[str, Any] | None, level: float) -> tuple[list[float], dict[str, Any] | None, Curriculum]:
        data = Curriculum()
        data.level = level
        loader = DataLoader(Subset(data, range(4)), 4, num_workers=1, persistent_workers=True)
        one = ExactLoader(loader, 1, 0, lambda _: PassStart(0, 0), lambda _: False)
        one.resume(state)
        read = next(iter(one.proxy))
        data.level += 1
        return read.view(-1).tolist(), one.state(0, 1, epoch_ended=True), data

    first, state, _ = process(None, 1.0)
    again, state_again, data = process(state, 2.0)
    assert again == first == [0.0, 1.0, 2.0, 3.0]
    assert state_again == state
    assert data.level == 3.0


def test_loader_that_reads_in_a_thread_is_seen() -> None:
    """Its thread and the step draw from the same generators, in the order in which they happen to run."""

    class InThread(DataLoader):
        def __iter__(self):
            inner, read = super().__iter__(), SimpleQueue[Any]()
            threading.Thread(target=lambda: [read.put(batch) for batch in (*inner, None)]).start()
            return iter(read.get, None)

    for kind, sees in ((InThread, True), (DataLoader, False)):
        one = ExactLoader(kind(Memory([1.0, 2.0]), 1), 1, 0, lambda _: PassStart(0, 0), lambda _: False)
        assert len([*one.proxy]) == 2
        assert one.reads_in_thread == sees


def test_a_place_of_an_earlier_spotrun_is_not_compared() -> None:
    state = place_after(2)
    assert state is not None
    del state["mark"], state["then"]
    one = begun([9.0] * 6, 2, state)
    iter(one.proxy)
    assert not one.gave_others


@pytest.mark.parametrize("ahead", [0, 1])
def test_what_a_collate_function_counts_is_named_if_it_is_read_ahead(ahead: int) -> None:
    loader = DataLoader(Memory([1.0] * 20), 2, collate_fn=Counts())
    one = ExactLoader(loader, 1, 0, lambda _: PassStart(0, 0), lambda _: False)
    read = iter(one.proxy)
    for number in range(1, 6):
        next(read)
        one.state(0, number - ahead, epoch_ended=False)
    assert [change.path for change in one.changed_ahead()] == ["Counts.calls"] * ahead


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2), torch.tensor([1.0, 2.0])),
        ({"x": [torch.ones(2, dtype=torch.bfloat16)]}, {"x": [torch.zeros(2, dtype=torch.bfloat16)]}),
        ((np.ones(3), "a"), (np.ones(3), "b")),
        (torch.ones(4, 4).t()[1:], torch.arange(12.0).view(3, 4)),
    ],
)
def test_batches_are_distinguished_by_their_contents(one: Any, other: Any) -> None:
    assert mark_of(one) != mark_of(other)
    assert mark_of(one) == mark_of(one)
