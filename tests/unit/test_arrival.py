"""
A checkpoint that is used while it comes: what may be used of it is what was committed, and comes first.
"""

from __future__ import annotations

import copy
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import pytest
import torch

from spotrun.agent.inbox import Exited, Inbox, NoticesLost, TrainerMessage, forget
from spotrun.checkpoint import layout
from spotrun.checkpoint.restore import Image, fetch, newest_readable
from spotrun.checkpoint.snapshot import read_image
from spotrun.run.state import Commit
from spotrun.trainer_link import ArenasWanted, LinkClosed
from spotrun.training.image_memory import KEPT_FROM_BYTES, ImageMemory
from spotrun.training.optimizer_states import OptimizerStates
from tests.support.checkpoint_entries import saved
from tests.support.checkpoint_images import image_bytes
from tests.support.eventually import eventually
from tests.support.memory_store import MemoryStore

MB = 1 << 20
IMAGE = os.urandom(20 * MB)
BEGIN = 9 * MB
"""In the midst of a part."""


class SlowStore(MemoryStore):
    """Each part comes when it is let go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()
        self.gates: dict[str, threading.Event] = {}

    def close_gates(self, commit: Commit) -> list[str]:
        """The parts of that commit, none of which comes any more."""
        parts = [found.key for found in self.list(commit.event.prefix) if "part-" in found.key]
        self.gates |= {key: threading.Event() for key in parts}
        self.asked.clear()
        return parts

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self.asked.add(key)
        if key in self.gates:
            assert self.gates[key].wait(60)
        return super().get(key, start, size)


class Reader:
    """Looks at a checkpoint as far as it is said to be there, each time that it is told of more."""

    def __init__(self, images: dict[int, bytes]) -> None:
        self._images = images
        self.told: list[tuple[int, int]] = []
        """Of which commit, and how much."""
        self.begin_bytes = 0

    def begins(self, image: Image, begin_bytes: int) -> None:
        self.begin_bytes = begin_bytes
        self._image = image
        self.told.append((image.commit.number, 0))

    def has(self, size_bytes: int) -> None:
        number = self._image.commit.number
        assert os.pread(self._image.fd, size_bytes, 0) == self._images[number][:size_bytes]
        assert self.told[-1] < (number, size_bytes), "told of less than before"
        self.told.append((number, size_bytes))


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], Image]], Future[Image]]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


@pytest.mark.parametrize("seed", range(10))
def test_reader_is_notified_only_of_the_contiguous_beginning(store: SlowStore, beside, seed: int) -> None:
    commit = saved(store, 1, IMAGE)
    parts = store.close_gates(commit)
    random.Random(seed).shuffle(parts)
    reader = Reader({1: IMAGE})
    image = beside(fetch, store, commit, reader)
    for part in parts:
        store.gates[part].set()
    image.result().close()
    assert reader.told[0] == (1, 0)
    assert reader.told[-1] == (1, len(IMAGE))


def test_first_bytes_of_a_trainer_arrive_before_the_rest_is_requested(store: SlowStore, beside) -> None:
    commit = saved(store, 1, IMAGE, begin_bytes=BEGIN)
    parts = store.close_gates(commit)
    sizes = [len(store.objects[part]) for part in parts]
    count = next(number for number in range(len(parts)) if sum(sizes[:number]) >= BEGIN)
    first, later = parts[:count], parts[count:]
    reader = Reader({1: IMAGE})
    image = beside(fetch, store, commit, reader)
    for part in first[1:]:
        store.gates[part].set()
    eventually(lambda: set(first) <= store.asked)
    assert reader.told == [(1, 0)]
    assert store.asked.isdisjoint(later)
    store.gates[first[0]].set()
    eventually(lambda: store.asked.issuperset(later))
    assert reader.told[-1] == (1, sum(sizes[:count]))
    assert reader.begin_bytes == BEGIN <= sum(sizes[:count])
    for part in later:
        store.gates[part].set()
    image.result().close()
    assert reader.told[-1] == (1, len(IMAGE))


def test_a_checkpoint_that_does_not_tell_what_comes_first_is_needed_whole(store: SlowStore) -> None:
    reader = Reader({1: IMAGE})
    fetch(store, saved(store, 1, IMAGE), reader).close()
    assert reader.begin_bytes == len(IMAGE)


def test_after_damage_it_begins_again_with_an_older_one(store: SlowStore) -> None:
    older, newer = os.urandom(20 * MB), IMAGE
    commits = saved(store, 1, older, begin_bytes=BEGIN), saved(store, 2, newer, begin_bytes=BEGIN)
    last = max(key for key in store.objects if key.startswith(f"{commits[1].event.prefix}/part-"))
    store.objects[last] = store.objects[last][:-1] + bytes([store.objects[last][-1] ^ 1])
    reader = Reader({1: older, 2: newer})
    found = newest_readable(store, commits[::-1], recipient=reader)
    found.image.close()
    assert (found.image.commit.number, found.skipped) == (1, (2,))
    begun = [number for number, size_bytes in reader.told if size_bytes == 0]
    assert begun == [2, 1]
    assert (2, len(newer)) not in reader.told
    assert reader.told[-1] == (1, len(older))


def test_nothing_that_a_replaced_trainer_has_said_is_taken_for_its_successors() -> None:
    def said(incarnation: int) -> TrainerMessage:
        return TrainerMessage(incarnation, ArenasWanted(size_bytes=7), datetime.now(UTC), 0.0)

    inbox, lost = Inbox(), NoticesLost("silence")
    letters = [said(0), lost, said(1), Exited(1, -9, datetime.now(UTC)), said(0)]
    for letter in letters:
        inbox.put(letter)
    forget(inbox, 1)
    left = [inbox.get_nowait() for _ in range(inbox.qsize())]
    assert sorted(map(repr, left)) == sorted(map(repr, [letters[0], lost, letters[4]]))


# -- what comes first ------------------------------------------------------------------------------------------------

LAST_ENTRIES = {
    "tensors": [{"state": {0: {"momentum": torch.ones(5)}, 1: {"momentum": torch.ones(7)}}, "param_groups": [{}]}],
    "an array": [np.arange(3.0), torch.ones(9)],
    "a numpy scalar": {"a": np.float64(2)},
    "tensors below tensors": ({"a": [torch.ones(2)]}, torch.ones(3)),
}


@pytest.mark.parametrize("last", LAST_ENTRIES.values(), ids=LAST_ENTRIES)
def test_all_but_the_last_entry_of_a_state_comes_first(last: object) -> None:
    first = {"weights": torch.randn(33), "seed": np.arange(4), "step": 7}
    image = bytearray(image_bytes(first | {"last": last}, {}))
    header = layout.decode_header(image)
    begin_bytes = layout.begin_bytes(header)
    assert begin_bytes == header.data_start + header.tensors[2].offset, "where the third tensor begins"
    image[begin_bytes:] = b"\xff" * (len(image) - begin_bytes)
    state, _ = read_image(image)
    assert torch.equal(state["weights"], first["weights"])
    assert np.array_equal(state["seed"], first["seed"])


@pytest.mark.parametrize("state", [{"a": torch.ones(3), "last": [1, 2]}, {}, [torch.ones(3)], None])
def test_where_nothing_comes_later_all_is_needed(state: object) -> None:
    image = image_bytes(state, {})
    assert layout.begin_bytes(layout.decode_header(image)) == len(image)


# -- the memory of a trainer -----------------------------------------------------------------------------------------


def memory_of(image: bytes) -> tuple[ImageMemory, int]:
    """Nothing is there yet; what is written to the descriptor comes."""
    fd = os.memfd_create("checkpoint")
    os.write(fd, b"\xff" * len(image))
    return ImageMemory(os.dup(fd), len(image), here_bytes=0), fd


def test_read_waits_for_its_bytes(beside) -> None:
    weights, moments = torch.randn(KEPT_FROM_BYTES), torch.randn(KEPT_FROM_BYTES)
    image = image_bytes({"weights": weights, "seed": np.arange(4), "last": moments}, {})
    begin_bytes = layout.begin_bytes(layout.decode_header(image))
    memory, fd = memory_of(image)
    memory.map_beside()

    def read() -> tuple[torch.Tensor, np.ndarray]:
        state, _ = read_image(memory.image, memory.need)  # type: ignore[arg-type]
        memory.need_all_of(state["weights"])
        return state

    reading = beside(read)
    for end in (8, 16, begin_bytes):
        assert not reading.done()
        os.pwrite(fd, image[:end], 0)
        memory.arrival.has(end)
    state = reading.result(60)
    assert torch.equal(state["weights"], weights)
    assert np.array_equal(state["seed"], np.arange(4))
    keeping = beside(memory.keep, state["last"])
    os.pwrite(fd, image, 0)
    memory.arrival.has(len(image))
    assert torch.equal(keeping.result(60), moments)
    os.close(fd)


def test_wait_ends_when_the_agent_is_gone(beside) -> None:
    memory, fd = memory_of(IMAGE[:MB])
    waiting = beside(memory.need, 1)
    memory.arrival.ends()
    with pytest.raises(LinkClosed, match="the agent is gone"):
        waiting.result(60)
    os.close(fd)


# -- optimizers ------------------------------------------------------------------------------------------------------


class InTime:
    """The memory of a checkpoint of which the rest is let come."""

    def __init__(self) -> None:
        self.came = False

    def keep(self, tree: object) -> object:
        self.came = True
        return tree

    def let_go(self) -> None:
        pass


def stepped(kind: Callable[..., torch.optim.Optimizer], **options: object) -> torch.optim.Optimizer:
    torch.manual_seed(4)
    layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)]
    optimizer = kind([{"params": layer.parameters(), "lr": 0.1 * (n + 1)} for n, layer in enumerate(layers)], **options)
    for _ in range(3):
        optimizer.zero_grad()
        layers[1](layers[0](torch.randn(5, 3))).sum().backward()
        optimizer.step()
    return optimizer


def resumed(optimizer: torch.optim.Optimizer, memory: InTime) -> tuple[torch.optim.Optimizer, OptimizerStates]:
    """Another one of the same kind, which is to continue it."""
    states = OptimizerStates([optimizer.state_dict()], memory)  # type: ignore[arg-type]
    other = type(optimizer)([{**group, "params": group["params"]} for group in optimizer.param_groups])
    for group in other.param_groups:
        group["lr"] = 77.0
    states.load([other])
    return other, states


def same(a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> bool:
    """Also what a file that pickles them would say: the entries of each group in their order."""
    ours, theirs = a.state_dict(), b.state_dict()
    in_order = list(map(list, a.param_groups)) == list(map(list, b.param_groups))
    equal = [
        torch.equal(torch.as_tensor(value), torch.as_tensor(theirs["state"][number][name]))
        for number, values in ours["state"].items()
        for name, value in values.items()
        if value is not None
    ]
    return in_order and all(equal) and bool(equal) and ours["param_groups"] == theirs["param_groups"]


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {"amsgrad": True}),
    "NAdam": (torch.optim.NAdam, {}),
    "RMSprop": (torch.optim.RMSprop, {"centered": True}),
    "Adagrad": (torch.optim.Adagrad, {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_has_its_groups_at_once_and_its_state_when_it_comes(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    optimizer = stepped(kind, **options)
    memory = InTime()
    other, states = resumed(optimizer, memory)
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.2]
    assert not memory.came
    states.arrive()
    assert memory.came
    assert same(optimizer, other)
    states.arrive()  # once more is no harm
    assert same(optimizer, other)


LOOKS: dict[str, Callable[[torch.optim.Optimizer], object]] = {
    "state_dict": lambda optimizer: optimizer.state_dict(),
    "a parameter's": lambda optimizer: optimizer.state[optimizer.param_groups[0]["params"][0]],
    "len": lambda optimizer: len(optimizer.state),
    "iteration": lambda optimizer: list(optimizer.state),
    "items": lambda optimizer: list(optimizer.state.items()),
    "in": lambda optimizer: "nothing" in optimizer.state,
    "get": lambda optimizer: optimizer.state.get("nothing"),
    "pop": lambda optimizer: optimizer.state.pop("nothing", None),
    "writing": lambda optimizer: optimizer.state.__setitem__("mine", {}) or optimizer.state.__delitem__("mine"),
    "a copy": lambda optimizer: copy.copy(optimizer.state),
}


@pytest.mark.parametrize("look", LOOKS)
def test_any_read_of_an_optimizer_gives_its_true_state(look: str) -> None:
    optimizer, memory = stepped(torch.optim.SGD, momentum=0.9), InTime()
    other, _ = resumed(optimizer, memory)
    LOOKS[look](other)
    assert memory.came
    assert same(optimizer, other)


def test_a_step_waits() -> None:
    optimizer, memory = stepped(torch.optim.SGD, momentum=0.9), InTime()
    other, _ = resumed(optimizer, memory)
    for each in (optimizer, other):
        for parameter in each.param_groups[1]["params"]:
            parameter.grad = torch.ones_like(parameter)
        each.step()
    assert memory.came
    assert same(optimizer, other)


def test_changes_to_a_parameter_group_during_the_arrival_stay() -> None:
    """A schedule that has set a rate, or somebody who holds the group."""
    other, states = resumed(stepped(torch.optim.AdamW), InTime())
    held = other.param_groups[1]
    held["lr"] = 0.5
    states.arrive()
    assert other.param_groups[1] is held
    assert other.param_groups[1]["lr"] == 0.5


def test_a_group_that_was_added_meanwhile_is_as_new() -> None:
    """A part of the network that is thawed when an epoch begins."""
    optimizer = stepped(torch.optim.SGD, momentum=0.9)
    other, states = resumed(optimizer, InTime())
    thawed = torch.nn.Parameter(torch.ones(3))
    other.add_param_group({"params": [thawed]})
    states.arrive()
    assert len(other.param_groups) == 3
    assert thawed not in other.state
    assert len(other.state) == 4
    del other.param_groups[2]
    assert same(optimizer, other)


def test_each_read_after_the_agent_is_gone_raises() -> None:
    class Lost(InTime):
        def keep(self, tree: object) -> object:
            raise LinkClosed("the agent is gone")

    other, _ = resumed(stepped(torch.optim.SGD, momentum=0.9), Lost())
    for _ in range(2):
        with pytest.raises(LinkClosed):
            len(other.state)


class Counting(torch.optim.SGD):
    """One of somebody's own, that keeps more than its state."""

    def load_state_dict(self, state_dict):
        self.loaded = len(state_dict["state"])
        super().load_state_dict(state_dict)


def test_an_optimizer_that_loads_in_its_own_way_gets_all_at_once() -> None:
    optimizer, memory = stepped(Counting, momentum=0.9), InTime()
    other, states = resumed(optimizer, memory)
    assert not memory.came, "nobody knows what it does with less"
    states.put_back([other])
    assert memory.came
    assert other.loaded == 4
    assert same(optimizer, other)


def test_an_optimizer_with_hooks_gets_all_at_once() -> None:
    optimizer, memory = stepped(torch.optim.SGD, momentum=0.9), InTime()
    seen = []
    other = torch.optim.SGD([{**group} for group in optimizer.param_groups])
    other.register_load_state_dict_post_hook(lambda optimizer: seen.append(len(optimizer.state)))
    states = OptimizerStates([optimizer.state_dict()], memory)
    states.load([other])
    states.put_back([other])
    assert seen == [4]
    assert memory.came
