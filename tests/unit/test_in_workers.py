"""What a data set keeps in the workers of its loader: a worker writes it down, and the training process reads it."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from spotrun.training.data import in_workers
from spotrun.training.data.in_workers import KEPT_THERE, Notes, Watch
from spotrun.training.python_state.encoding import UntrackedChange


class Meter:
    def __init__(self) -> None:
        self.seen = 0


class Data:
    def __init__(self) -> None:
        self.count, self.counts = 0, 0
        self.cache: dict[int, int] = {}
        self.table = list(range(1000))
        self.read = np.zeros(5)
        self.memory = torch.zeros(5)
        self.meter = Meter()
        self.rng = random.Random(1)
        self.file: Any = None


class Opened:
    pass


def named(change: Any, dataset: Any = None, before: Any = None) -> list[str]:
    data, notes = Data(), Notes(2)
    watch = Watch(Subset(data, [0]) if dataset is None else dataset(data), notes)  # type: ignore[arg-type]
    if before is not None:
        before(data)
    watch.look(1)
    change(data)
    watch.look(1)
    watch.look(1)
    found = list(notes.read())
    assert all(lost.what == KEPT_THERE for lost in found)
    return [lost.path for lost in found]


@pytest.mark.exhaustive
def test_changed_object_is_named() -> None:
    assert named(lambda data: setattr(data, "count", 1)) == ["Data.count"]
    assert named(lambda data: data.read.fill(1)) == ["Data.read"]
    assert named(lambda data: data.memory.add_(1)) == ["Data.memory"]
    assert named(lambda data: setattr(data.meter, "seen", 1)) == ["Data.meter.seen"]
    assert named(lambda data: data.table.append(1)) == ["Data.table"]
    assert named(lambda data: data.cache.update({1: 2})) == ["Data.cache"]
    assert named(lambda data: setattr(data, "new", 1)) == ["Data.new"]
    assert named(lambda data: delattr(data, "count"), lambda data: data) == ["Data.count"]
    assert named(lambda data: vars(data).update(count=1, counts=1), lambda data: data) == ["Data.count", "Data.counts"]


def test_object_that_each_worker_makes_again_is_not_named() -> None:
    assert named(lambda data: None, before=lambda data: data.cache.update({1: 2})) == []
    assert named(lambda data: setattr(data, "file", object())) == []
    assert named(lambda data: data.rng.random()) == [], "it is seeded by the place in the data"


def test_internal_object_of_a_library_is_not_named() -> None:
    subset = Subset(Data(), [0])  # type: ignore[arg-type]
    notes = Notes(1)
    watch = Watch(subset, notes)
    watch.look(0)
    vars(subset)["last"] = 5
    watch.look(0)
    assert list(notes.read()) == []


def test_looks_become_rare() -> None:
    looks = 0

    class Counting(Watch):
        def look(self, worker: int) -> None:
            nonlocal looks
            looks += 1

    watch = Counting(Data(), Notes(1))
    for _ in range(5000):
        watch.batch_is_read(0)
    assert looks == 13 + 1, "at each power of two, and at 3,072"


def test_rows_of_workers_are_apart_and_have_an_end() -> None:
    notes = Notes(2)
    notes.write(0, ["a"])
    notes.write(1, [f"{number}{'ä' * 100}" for number in range(in_workers.PLACES_MAX)])
    first, *others = notes.read()
    assert first == UntrackedChange("a", KEPT_THERE)
    assert others
    assert all(lost.path[1:] == "ä" * 100 for lost in others)
    notes.write(0, ["b" * 10_000])
    assert next(notes.read()) == UntrackedChange("b" * in_workers.PLACE_MAX, KEPT_THERE)


def test_a_worker_of_its_own_interpreter_finds_the_same_memory() -> None:
    """As a spawned worker gets it: by the reductions of torch, not by a copy."""
    notes = Notes(1)
    assert notes._rows.is_shared()
    assert copy.copy(notes)._rows.data_ptr() == notes._rows.data_ptr()
    assert pickle.loads(pickle.dumps(Watch(Data(), notes).notes))._rows.shape == notes._rows.shape
