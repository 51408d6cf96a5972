"""What samplers keep between passes, and orders that do not end."""

from __future__ import annotations

import itertools
import random
from collections import deque

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, WeightedRandomSampler

from spotrun.training import seeds
from spotrun.training.data import samplers
from spotrun.training.data.samplers import Drawn, Samplers


class Own(Sampler):
    def __init__(self):
        self.epoch, self.table, self.weights = 0, list(range(500)), torch.ones(3)
        self.recent, self.array = deque([1], maxlen=2), np.zeros(2)

    def __iter__(self):
        self.epoch += 1
        return iter([self.epoch])


def pass_of(state, sampler, key):
    state.begin(key)
    order = list(sampler)
    state.drawn()
    return order


def test_a_pass_that_is_drawn_again_in_another_process_is_the_same():
    sampler, again = Own(), Own()
    state, other = Samplers(sampler), Samplers(again)
    for key in range(3):
        pass_of(state, sampler, key)
    sampler.weights[1] = 7
    sampler.recent.append(9)
    sampler.array += 1
    sampler.table = [*sampler.table, 1]
    saved = state.state(next_pass=False)
    pass_of(other, again, "elsewhere, too early")
    other.resume(saved)
    assert pass_of(other, again, 2) == [3]
    assert again.weights.tolist() == [1, 7, 1]
    assert (again.recent, again.recent.maxlen) == (deque([1, 9]), 2)
    assert again.array.tolist() == [1, 1]
    assert again.table[-2:] == [499, 1]
    assert pass_of(other, again, 3) == pass_of(state, sampler, 3) == [4]


def test_weights_that_the_script_shares_and_changes_within_the_pass_are_those_of_its_beginning_when_it_is_drawn_again():
    """A resume has restored the script's own tensor before, so the new process has the later weights."""
    weights = torch.ones(100, dtype=torch.double)
    sampler = WeightedRandomSampler(weights, 100, generator=torch.Generator().manual_seed(1))
    state = Samplers(sampler)
    order = pass_of(state, sampler, 0)
    weights[:90] = 0
    restored = weights.clone()
    again = WeightedRandomSampler(restored, 100, generator=torch.Generator().manual_seed(1))
    other = Samplers(again)
    other.resume(state.state(next_pass=False))
    assert pass_of(other, again, 0) == order
    assert again.weights is restored
    assert torch.equal(restored, weights)


def test_long_list_that_a_hook_shuffles_in_place_is_saved_as_an_array():
    sampler, again = Own(), Own()
    sampler.shares, again.shares = [[n / 7] * 2 for n in range(100)], [[n / 7] * 2 for n in range(100)]
    state, other = Samplers(sampler), Samplers(again)
    pass_of(state, sampler, 0)
    assert state.state(next_pass=False)["since"] == {}
    random.shuffle(sampler.table)
    sampler.shares[3][0] = 0.5
    saved = state.state(next_pass=False)
    assert sorted(saved["since"]) == ["sampler.shares", f"sampler.table{samplers.PACKED}"]
    assert saved["since"][f"sampler.table{samplers.PACKED}"].dtype == np.int64
    for snapshot in (saved, state.state(next_pass=True)):
        other.resume(snapshot)
        pass_of(other, again, 0)
        assert (again.table, again.shares) == (sampler.table, sampler.shares)
        assert type(again.table[0]) is int


def test_data_that_a_sampler_holds_keeps_its_items():
    """A RandomSampler holds the data set, which may be a list. Other lists of the script have its items too."""
    data = [[1, 2], [3]]
    items = list(data)
    sampler, weights = RandomSampler(data), torch.ones(3)
    state = Samplers(sampler)
    sampler.weights = weights
    pass_of(state, sampler, 0)
    state.resume(state.state(next_pass=False))
    pass_of(state, sampler, 0)
    pass_of(state, sampler, 0)
    assert [id(item) for item in data] == [id(item) for item in items]
    assert sampler.weights is weights


def test_a_pass_that_begins_twice_keeps_only_what_a_hook_has_changed():
    sampler = Own()
    state = Samplers(sampler)
    assert pass_of(state, sampler, 0) == [1]
    sampler.weights = torch.zeros(3)
    assert pass_of(state, sampler, 0) == [1]
    assert sampler.weights.tolist() == [0, 0, 0]


def test_long_values_are_saved_only_if_they_have_changed():
    sampler = Own()
    state = Samplers(BatchSampler(sampler, 2, False))
    state.begin(0)
    state.drawn()
    assert not any("table" in name for name in state.state(next_pass=True)["before"])
    sampler.table[3] = 0
    assert state.state(next_pass=True)["before"][f"sampler.sampler.table{samplers.PACKED}"][3] == 0


def test_an_order_without_an_end_is_drawn_as_far_as_it_is_needed(monkeypatch):
    monkeypatch.setattr(samplers, "DRAWN_AT_ONCE", 10)
    seeds.seed_cpu(5)
    order = Drawn(random.randrange(100) for _ in itertools.count())
    random.seed(0)
    other = random.random()
    random.seed(0)
    found = [order.at(number) for number in range(35)]
    assert random.random() == other, "the training's generators are as they were"
    seeds.seed_cpu(5)
    assert found == [random.randrange(100) for _ in range(35)]
