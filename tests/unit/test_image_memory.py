"""The memory that a trainer resumes from: what is kept stays where it lies, and the rest is given back."""

from __future__ import annotations

import gc
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from torch import Tensor

from spotrun.checkpoint.snapshot import read_image
from spotrun.training import image_memory
from spotrun.training.image_memory import KEPT_FROM_BYTES, ImageMemory, Received
from tests.support.checkpoint_images import image_bytes
from tests.support.eventually import eventually

LARGE = 4 * KEPT_FROM_BYTES


def numbers(size_bytes: int) -> Tensor:
    return torch.randn(size_bytes // 4)


class Resumed:
    """A process that resumes from a checkpoint; `fd` shows what the memory takes."""

    def __init__(self) -> None:
        self.weights, self.moments, self.step = numbers(LARGE), numbers(LARGE).view(-1, 16), torch.tensor(7.0)
        optimizer = OrderedDict(state=[{"moments": self.moments, "step": self.step}])
        image = image_bytes({"state_dict": {"weights": self.weights}, "optimizer": optimizer}, {})
        self.fd = os.memfd_create("image")
        os.write(self.fd, image)
        self.memory = ImageMemory(os.dup(self.fd), len(image))
        self.state: dict[str, Any] = read_image(self.memory.image)[0]
        self.whole_bytes = self.used_bytes()

    def used_bytes(self) -> int:
        return os.fstat(self.fd).st_blocks * 512


@pytest.fixture
def resumed() -> Iterator[Resumed]:
    made = Resumed()
    yield made
    os.close(made.fd)


def test_kept_state_has_the_same_bits_in_the_same_tree(resumed: Resumed) -> None:
    kept = resumed.memory.keep(resumed.state["optimizer"])
    assert type(kept) is OrderedDict
    assert torch.equal(kept["state"][0]["moments"], resumed.moments)
    assert torch.equal(kept["state"][0]["step"], resumed.step)


def test_a_large_tensor_takes_no_new_memory(resumed: Resumed) -> None:
    kept = resumed.memory.keep(resumed.state["optimizer"])["state"][0]
    kept["moments"].fill_(1)
    kept["step"].fill_(8)
    now = os.pread(resumed.fd, resumed.whole_bytes, 0)
    assert torch.ones(LARGE // 4).numpy().tobytes() in now
    assert resumed.used_bytes() == resumed.whole_bytes


def test_memory_is_freed_when_no_view_of_it_is_left(resumed: Resumed) -> None:
    kept = resumed.memory.keep(resumed.state["optimizer"])["state"][0]
    resumed.memory.let_go()
    seen = resumed.state["state_dict"]["weights"]
    resumed.state = {}
    gc.collect()
    assert torch.equal(seen, resumed.weights)
    assert resumed.used_bytes() == resumed.whole_bytes
    del seen
    eventually(lambda: resumed.used_bytes() <= LARGE + 2 * mmap.PAGESIZE)
    assert torch.equal(kept["moments"], resumed.moments)


def test_writing_to_what_was_not_kept_changes_nothing_that_was(resumed: Resumed) -> None:
    kept = resumed.memory.keep(resumed.state["optimizer"])["state"][0]
    resumed.state["optimizer"]["state"][0]["moments"].zero_()
    assert torch.equal(kept["moments"], resumed.moments)


def test_a_forked_child_gives_nothing_of_its_parents_back(resumed: Resumed, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = resumed.memory.keep(resumed.state["optimizer"])["state"][0]
    resumed.memory.let_go()

    def forget() -> None:
        monkeypatch.setattr(image_memory.threading.Thread, "start", lambda thread: thread.run())
        resumed.state.clear()
        gc.collect()

    child = get_context("fork").Process(target=forget)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert torch.equal(resumed.state["state_dict"]["weights"], resumed.weights)
    assert resumed.used_bytes() == resumed.whole_bytes
    assert torch.equal(kept["moments"], resumed.moments)


def test_another_rank_copies_what_it_was_sent() -> None:
    weights = numbers(LARGE)
    image = image_bytes({"weights": weights}, {})
    received = Received(len(image))
    received.image[:] = image
    state = read_image(received.image)[0]
    kept = received.keep(state)
    state["weights"].zero_()
    assert torch.equal(kept["weights"], weights)


@pytest.mark.parametrize("kept", [[], [(0, 10)], [(5000, 9000)], [(4096, 8192), (8192, 12288)], [(0, 40_000)]])
def test_pages_between_hold_nothing_that_is_kept(kept: list[tuple[int, int]]) -> None:
    size_bytes = 40_000
    spare = list(image_memory._pages_between(kept, size_bytes))
    held = {byte // mmap.PAGESIZE for begin, end in kept for byte in range(begin, end)}
    whole = {page for page in range(size_bytes // mmap.PAGESIZE) if page not in held}
    given = {page for start, size in spare for page in range(start // mmap.PAGESIZE, (start + size) // mmap.PAGESIZE)}
    assert given == whole
