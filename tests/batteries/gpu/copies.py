"""
Measures and checks the copies of snapshots out of an accelerator's memory.

    python -m tests.batteries.gpu.copies --gigabytes 1,8

For each size: how long a copy takes into the memory of a snapshot, into memory that PyTorch pins, and into memory that
is not pinned; how much of it passes while the accelerator computes; and whether the snapshot has exactly the values of
its boundary, although the next step of the optimizer is queued behind it. Prints one line of JSON for each size. Fails
if a snapshot is wrong, or if the memory of snapshots is not pinned.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from spotrun.checkpoint import accelerator
from spotrun.checkpoint.snapshot import plan_image
from spotrun.checkpoint.staging import Stager

REPEATS = 5
TENSORS = 16
SLACK_BYTES = 1 << 20


def seconds(work: Callable[[], object]) -> float:
    torch.accelerator.synchronize()
    began = time.perf_counter()
    work()
    torch.accelerator.synchronize()
    return time.perf_counter() - began


def often(work: Callable[[], object]) -> float:
    work()
    return median(seconds(work) for _ in range(REPEATS))


def measure(device: torch.device, size_bytes: int) -> dict[str, Any]:
    weights = [torch.ones(size_bytes // 4 // TENSORS, device=device) for _ in range(TENSORS)]
    plan = plan_image({"weights": weights}, {})
    stager = Stager()
    arena_bytes = plan.size_bytes + SLACK_BYTES
    fd = os.memfd_create("arena")
    os.ftruncate(fd, arena_bytes)
    computing = Computing(device)
    alone_s = computing.seconds()
    adopted_s = seconds(lambda: stager.adopt(fd, arena_bytes, (0,), 0))
    memory = stager._arenas[0]
    pageable = torch.empty(size_bytes // 4)
    pinned = torch.empty(size_bytes // 4, pin_memory=True)
    whole = torch.ones(size_bytes // 4, device=device)

    def snapshot() -> None:
        staged = stager.stage(plan, plan.pieces)
        staged.begin()
        staged.wait()
        stager.free(staged.arena)

    found = {
        "GB": size_bytes / 1e9,
        "pinned": memory.is_pinned(),
        "adopt_s": adopted_s,
        "snapshot_s": often(snapshot),
        "pinned_s": often(lambda: pinned.copy_(whole, non_blocking=True)),
        "pageable_s": often(lambda: pageable.copy_(whole)),
        "compute_s": alone_s,
        "both_s": median(overlapped(stager, plan, computing) for _ in range(REPEATS)),
        "exact": all(exact(stager, plan, weights, computing, step) for step in range(REPEATS)),
        "torn_without_wait": torn(stager, plan, weights, computing),
    }
    copy_s = found["snapshot_s"]
    found["overlap"] = (found["compute_s"] + copy_s - found["both_s"]) / min(found["compute_s"], copy_s)
    stager.close()
    accelerator.unpin(memory)
    return found


class Computing:
    """Keeps the device computing for at least as long as a large copy, without memory traffic."""

    def __init__(self, device: torch.device) -> None:
        self._one = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) / 90
        self.products = 60

    def begin(self) -> None:
        value = self._one
        for _ in range(self.products):
            value = value @ self._one

    def seconds(self) -> float:
        return often(self.begin)


def overlapped(stager: Stager, plan: Any, computing: Computing) -> float:
    def both() -> None:
        staged = stager.stage(plan, plan.pieces)
        computing.begin()
        staged.begin()
        staged.wait()
        stager.free(staged.arena)

    return seconds(both)


def exact(stager: Stager, plan: Any, weights: list[Tensor], computing: Computing, step: int) -> bool:
    """
    Return whether a snapshot has the values that the last step, which may still be queued, gives to the weights. The
    next step writes to them after `wait`, as Snapshots.settle has it.
    """
    for value in weights:
        value.fill_(step)
    computing.begin()
    for value in weights:
        value.add_(1)
    staged = stager.stage(plan, plan.pieces)
    computing.begin()
    staged.begin()
    staged.wait()
    for value in weights:
        value.add_(1000)
    torch.accelerator.synchronize()
    good = copied(stager, plan, staged.arena) == {float(step + 1)}
    stager.free(staged.arena)
    return good


def torn(stager: Stager, plan: Any, weights: list[Tensor], computing: Computing) -> bool:
    """Return whether the same snapshot is wrong if nobody waits: only then does `exact` prove anything."""
    for value in weights:
        value.fill_(0)
    staged = stager.stage(plan, plan.pieces)
    torch.accelerator.synchronize()
    staged.begin()
    for step in range(200):
        for value in weights:
            value.fill_(step + 1)
    staged.wait()
    torch.accelerator.synchronize()
    wrong = copied(stager, plan, staged.arena) != {0.0}
    stager.free(staged.arena)
    return wrong


def copied(stager: Stager, plan: Any, arena: int) -> set[float]:
    """Return all values that the snapshot has."""
    found: set[float] = set()
    for piece in plan.pieces:
        values = stager._arenas[arena][piece.start : piece.start + piece.size_bytes].view(torch.float32)
        found |= {float(values.min()), float(values.max())}
    return found


def failed_pin(device: torch.device) -> dict[str, Any]:
    """Pin the same memory twice, which CUDA refuses, and return whether the device still computes."""
    memory = torch.empty(1 << 20, dtype=torch.uint8)
    accelerator.pin(memory)
    accelerator.pin(memory)
    try:
        computes = bool((torch.ones(8, device=device) * 2).sum().item() == 16)
    except RuntimeError as error:
        computes = f"{error}".splitlines()[0]  # type: ignore[assignment]
    accelerator.unpin(memory)
    accelerator.unpin(memory)
    return {"computes": computes, "and after an unpin in vain": bool(torch.ones(8, device=device).sum().item() == 8)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", default="1,8")
    args = parser.parse_args()
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        raise SystemExit("error: there is no accelerator\n  try: this on a machine with a GPU")
    device = torch.device(device.type, 0)
    print(json.dumps({"name": torch.cuda.get_device_name(), "torch": torch.__version__}), flush=True)
    after = failed_pin(device)
    print(json.dumps({"after a pin that failed": after}), flush=True)
    found = []
    for size in args.gigabytes.split(","):
        found.append(measure(device, int(float(size) * 1e9)))
        print(json.dumps(found[-1]), flush=True)
    if not all(value is True for value in after.values()):
        raise SystemExit("error: a pin that fails makes a later kernel fail")
    if not all(one["exact"] and one["pinned"] and one["torn_without_wait"] for one in found):
        raise SystemExit("error: a snapshot is wrong, or its memory is not pinned")


if __name__ == "__main__":
    main()
