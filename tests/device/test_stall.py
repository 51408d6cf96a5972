"""
Measure how long a training waits while a snapshot is copied, in the simulated accelerator's own time, without noise.

    python -m tests.device.test_stall        # the table in docs/benchmarks.md
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from spotrun import Loop
from spotrun.checkpoint import layout, staging
from spotrun.training import local_folder, overlap
from tests.device import toy
from tests.device.apart import fault_in_fork

RATES = (0.1e9, 1e9, 20e9)
"""Bytes per second that the device copies."""
STEPS = (1.0, 0.25)
"""How long a step computes, in times of a copy."""
FIRST = 2
"""The steps before measured ones. The first snapshot of an attempt is copied while the training waits (overlap.py)."""
SIZES_BYTES = (200_000_000, 2_000_000_000)


class TimedTask(staging.CopyTask[Any]):
    """Takes the time of the training thread to the copying thread, and back."""

    def __init__(self, pool: ThreadPoolExecutor, work: Callable[[], Any]) -> None:
        def timed() -> Any:
            toy.come_to(self._begun_s)
            try:
                return work()
            finally:
                self._ended_s = toy.now()

        super().__init__(pool, timed)
        self._begun_s = self._ended_s = 0.0

    def begin(self) -> None:
        if self._future is None:
            self._begun_s = toy.now()
        super().begin()

    def result(self) -> Any:
        found = super().result()
        toy.come_to(self._ended_s)
        return found


class Weights(nn.Module):
    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(size_bytes // 16, device="toy") for _ in range(4))

    def forward(self, lasts_s: float) -> None:
        toy.compute(lasts_s)


class AddsOne(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(1)


class Stall(NamedTuple):
    """The cost of one snapshot. `values` are those of all weights in the snapshot on disk, and `step` is its step."""

    rate: float
    copy_s: float
    step_s: float
    stall_s: float
    step: int
    values: set[float]

    @property
    def overlap(self) -> float:
        """The part of the copy that was hidden, of what a step of this length can hide."""
        return (self.copy_s - self.stall_s) / min(self.copy_s, self.step_s)


def stalls(size_bytes: int, folder: Path) -> Iterator[Stall]:
    """Train with a snapshot before each step, at each rate and with steps of each length."""
    cases = [(rate, times * size_bytes / rate) for rate, times in itertools.product(RATES, STEPS)]
    toy.set_capacity(2 * size_bytes)
    staging.CopyTask = TimedTask  # type: ignore[misc]
    local_folder.EVERY_S = 0.0
    model = Weights(size_bytes)
    optimizer = AddsOne(model.parameters(), {})
    loop = Loop(seed=1, local=str(folder), model=model, optimizer=optimizer)
    numbers, ends_s = DataLoader(range(FIRST + len(cases))), list[float]()
    for _ in loop.epochs(1):
        for (number,) in map(torch.Tensor.tolist, loop.batches(numbers)):
            rate, step_s = cases[max(0, number - FIRST)]
            model(step_s)
            optimizer.step()
            torch.accelerator.synchronize()
            ends_s.append(toy.now())
            if number >= FIRST:
                local_folder.in_folder(os.path.realpath(folder)).end()  # the snapshot is on disk
                stall_s = ends_s[-1] - ends_s[-2] - step_s
                yield Stall(rate, size_bytes / rate, step_s, stall_s, *saved(folder))
            if number + 1 < FIRST + len(cases):
                toy.rate(cases[max(0, number + 1 - FIRST)][0])


def saved(folder: Path) -> tuple[int, set[float]]:
    """Return the step of the snapshot in the folder, and all values of its weights."""
    image = np.memmap(folder / "fit-1", np.uint8, "r")
    header = layout.decode_header(memoryview(image))
    weights = [each for each in header.tensors if each.size_bytes >= 1 << 20]
    values = [image[header.data_start + each.offset :][: each.size_bytes].view(np.float32) for each in weights]
    return header.meta["step"], {float(value) for each in values for value in (each.min(), each.max())}


def check(size_bytes: int, folder: Path) -> None:
    found = [*stalls(size_bytes, folder)]
    for step, each in enumerate(found, FIRST):
        assert each.stall_s <= each.copy_s - min(each.copy_s, each.step_s) + 0.1 * each.copy_s, each
        assert (each.step, each.values) == (step, {float(step)})
    assert len(found) == len(RATES) * len(STEPS)


def test_training_computes_while_a_snapshot_is_copied(tmp_path: Path) -> None:
    check(SIZES_BYTES[0], tmp_path)


@pytest.mark.nightly
def test_training_computes_while_a_large_snapshot_is_copied(tmp_path: Path) -> None:
    check(SIZES_BYTES[1], tmp_path)


def test_copy_at_the_boundary_is_seen_as_a_stall(tmp_path: Path) -> None:
    """So the figures above say something."""
    overlap.Overlap.pieces = lambda *_: []  # type: ignore[method-assign]
    (first, *_) = stalls(SIZES_BYTES[0] // 10, tmp_path)
    assert first.stall_s == pytest.approx(first.copy_s)


def print_rows(size_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for each in stalls(size_bytes, Path(folder)):
            times = " | ".join(f"{round(value, 6) or 0:g} s" for value in (each.copy_s, each.step_s, each.stall_s))
            print(f"| {size_bytes / 1e9:g} GB | {each.rate / 1e9:g} GB/s | {times} | {each.overlap:.0%} |", flush=True)


def main() -> int:
    print(
        "| snapshot | copied at | copy | step | stall | hidden, of what can be |",
        "|---|" + "---|" * 5,
        sep="\n",
        flush=True,
    )
    faults = [fault for size_bytes in SIZES_BYTES if (fault := fault_in_fork(partial(print_rows, size_bytes)))]
    print(*faults, sep="\n", end="", file=sys.stderr)
    return len(faults)


if __name__ == "__main__":
    sys.exit(main())
