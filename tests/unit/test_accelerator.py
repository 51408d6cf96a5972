"""
checkpoint/accelerator.py: what is asked of a device, in which order and by which thread; and on a GPU, the copy itself.

`CopyStreams` stands for a device whose memory is the processor's. All but the copy is the same as with CUDA.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from spotrun.checkpoint.snapshot import ImagePlan, Piece, plan_image, read_image
from spotrun.checkpoint.staging import Stager
from spotrun.training.machine import driver_in

ARENA_BYTES = 64 << 20


class Lanes:
    """Notes what it is asked, and whether by the thread that trains."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []
        self._trainer = threading.get_ident()

    def devices(self, tensors: Iterable[Tensor]) -> set[torch.device]:
        return {tensor.device for tensor in tensors}

    def mark(self, device: torch.device) -> int:
        self._note("mark")
        return len(self.asked)

    @contextlib.contextmanager
    def beside(self, device: torch.device, mark: Any) -> Iterator[None]:
        self._note(f"after {mark}")
        yield
        self._note("synchronize")

    def wait(self, device: torch.device) -> None:
        self._note("wait")

    def _note(self, what: str) -> None:
        self.asked.append((what, threading.get_ident() == self._trainer))


@contextlib.contextmanager
def stager_of(lanes: Lanes | None) -> Iterator[Stager]:
    stager = Stager(lanes)
    fd = os.memfd_create("arena")
    os.ftruncate(fd, ARENA_BYTES)
    stager.adopt(fd, ARENA_BYTES, (0,), 0)
    try:
        yield stager
    finally:
        stager.close()


def planned(weights: Tensor) -> tuple[ImagePlan, list[Piece]]:
    plan = plan_image({"weights": weights, "steps": torch.arange(5, device=weights.device)}, {})
    return plan, [piece for piece in plan.pieces if piece.tensor.data_ptr() == weights.data_ptr()]


def read(stager: Stager, arena: int) -> dict[str, Tensor]:
    state, _ = read_image(memoryview(bytearray(stager._arenas[arena].numpy().tobytes())))
    return dict(state)


def test_copy_has_the_state_of_the_boundary_and_overlaps_the_next_step() -> None:
    lanes, weights = Lanes(), torch.randn(1000)
    with stager_of(lanes) as stager:
        plan, later = planned(weights)
        staged = stager.stage(plan, later)
        at_boundary = [("wait", True), ("mark", True)]
        assert lanes.asked == at_boundary, "what is small is there, and the moment of the rest is known"
        staged.begin()
        staged.wait()
        assert lanes.asked == [*at_boundary, ("after 2", False), ("synchronize", False)]
        assert torch.equal(read(stager, staged.arena)["weights"], weights)


def test_finiteness_check_overlaps_the_training() -> None:
    lanes, weights = Lanes(), torch.randn(10)
    with stager_of(lanes) as stager:
        work = stager.aside(lambda: bool(torch.isfinite(weights).all()), [weights])
        assert lanes.asked == [("mark", True)]
        assert work.result()
        assert lanes.asked[1:] == [("after 1", False), ("synchronize", False)]


def test_training_on_the_processor_calls_no_device() -> None:
    weights = torch.randn(1000)
    with stager_of(None) as stager:
        plan, later = planned(weights)
        staged = stager.stage(plan, later)
        staged.wait()
        assert torch.equal(read(stager, staged.arena)["weights"], weights)
        assert not torch.cuda.is_initialized()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_copies_what_was_there_at_the_boundary_while_it_computes() -> None:
    """A step of mixed precision: forward and backward are under way, and the optimizer writes after the wait."""
    device = torch.device("cuda")
    layer = torch.nn.Linear(2048, 2048, device=device)
    optimizer, scaler = torch.optim.AdamW(layer.parameters()), torch.amp.GradScaler("cuda")
    with stager_of(None) as stager:
        for _ in range(5):
            plan, later = planned(layer.weight)
            before = layer.weight.detach().cpu()
            staged = stager.stage(plan, later)
            staged.begin()
            with torch.autocast("cuda", torch.float16):
                loss = layer(torch.randn(4096, 2048, device=device)).square().mean()
            scaler.scale(loss).backward()
            staged.wait()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            read_back = read(stager, staged.arena)
            assert torch.equal(read_back["weights"], before)
            assert torch.equal(read_back["steps"], torch.arange(5))
            stager.free(staged.arena)


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023", {"driver": "NVIDIA 535.129.03"}),
        ("NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", {"driver": "NVIDIA 570.86.15"}),
        ("something else", {}),
    ],
)
def test_the_driver_s_version_is_read_from_its_own_file(line: str, facts: dict[str, str]) -> None:
    assert driver_in(f"NVRM version: {line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n") == facts
