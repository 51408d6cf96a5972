"""The simulated accelerator itself: it does what tests of copies rely on."""

from __future__ import annotations

import ctypes
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.device import build, toy

DEVICES = ["toy:0", "toy:1"]


def step(model: nn.Module, rate: float) -> None:
    """Do without torch.optim, which takes seconds to import."""
    for weight in model.parameters():
        assert weight.grad is not None
        weight.data.sub_(weight.grad, alpha=rate)
        weight.grad = None


class Sgd:
    """As much of an optimizer as a GradScaler needs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.param_groups = [{"params": [*model.parameters()]}]

    def step(self) -> None:
        step(self.model, 0.1)


def pinned(size: int, value: int) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8, pin_memory=True)


@pytest.mark.parametrize("device", DEVICES)
def test_cpu_cannot_read_the_memory_of_a_device(device: str) -> None:
    """The kernel refuses to write such bytes to a pipe. In Python, reading one would end the process."""
    tensor = torch.ones(3, device=device)
    write = ctypes.CDLL(None, use_errno=True).write
    read_end, write_end = os.pipe()
    assert write(write_end, ctypes.c_void_p(torch.ones(3).data_ptr()), 1) == 1
    assert write(write_end, ctypes.c_void_p(tensor.data_ptr()), 1) == -1
    assert ctypes.get_errno() == errno.EFAULT
    assert read_end
    assert tensor.tolist() == [1, 1, 1]


def test_copy_into_pinned_memory_returns_before_it_is_done() -> None:
    source, target = torch.full((1000,), 7, dtype=torch.uint8, device="toy"), pinned(1000, 0)
    toy.allow(300)
    target.copy_(source, non_blocking=True)
    toy.settle(copies=1)
    assert target.tolist() == [7] * 300 + [0] * 700
    assert not torch.accelerator.current_stream().query()
    toy.allow(toy.ALL)
    torch.accelerator.synchronize()
    assert target.tolist() == [7] * 1000


@pytest.mark.parametrize("direction", [toy.DOWNLOAD, toy.UPLOAD])
def test_copy_of_other_memory_waits_until_it_is_done(direction: toy.Direction) -> None:
    toy.allow(0, direction)
    there, here = torch.full((9,), 7, device="toy"), torch.zeros(9, dtype=torch.int64)
    if direction == toy.DOWNLOAD:
        here.copy_(there, non_blocking=True)
        assert here.tolist() == [7] * 9
    else:
        there.copy_(here, non_blocking=True)
        assert there.tolist() == [0] * 9
    assert toy.copies(direction, asynchronous=True) == 0
    assert toy.copies(direction, asynchronous=False) > 0


def test_copies_take_the_time_that_their_rate_gives() -> None:
    source, target = torch.ones(200_000, dtype=torch.uint8, device="toy"), pinned(200_000, 0)
    toy.rate(10e6)
    target.copy_(source, non_blocking=True)
    assert toy.now() == 0
    torch.accelerator.synchronize()
    assert toy.now() == pytest.approx(0.02)
    assert (source + 1).sum() == 400_000
    assert toy.now() == pytest.approx(0.02), "operators take no time"
    source.cpu()
    assert toy.now() == pytest.approx(0.04)


def test_streams_work_at_the_same_time_unless_one_waits_for_the_other() -> None:
    source, target, side = torch.ones(100, dtype=torch.uint8, device="toy"), pinned(100, 0), torch.Stream("toy:0")
    toy.rate(100)
    toy.compute(5)
    for ends_s in (1, 6):
        with side:
            target.copy_(source, non_blocking=True)
        side.synchronize()
        assert toy.now() == ends_s
        side.wait_event(torch.accelerator.current_stream(0).record_event())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(toy.now).result() == 0, "each thread has a time of its own"


def test_stream_waits_for_an_event_of_another_stream() -> None:
    tensor, side = torch.zeros(4, dtype=torch.uint8, device="toy"), torch.Stream("toy:0")
    event, target = torch.Event("toy:0"), pinned(4, 9)
    toy.allow(0, toy.UPLOAD)
    tensor.copy_(pinned(4, 5), non_blocking=True)
    event.record(torch.accelerator.current_stream(0))
    side.wait_event(event)
    with side:
        target.copy_(tensor, non_blocking=True)
    toy.settle(copies=1)
    assert target.tolist() == [9] * 4
    assert not event.query()
    toy.allow(toy.ALL, toy.UPLOAD)
    side.synchronize()
    assert target.tolist() == [5] * 4


def test_operator_waits_for_the_stream_of_its_thread_alone() -> None:
    tensor, source = torch.zeros(4, dtype=torch.uint8, device="toy"), pinned(4, 5)
    toy.allow(0, toy.UPLOAD)
    with torch.Stream("toy:0"):
        tensor.copy_(source, non_blocking=True)
    assert (tensor + 1).tolist() == [1] * 4
    toy.allow(toy.ALL, toy.UPLOAD)
    torch.accelerator.synchronize()
    assert (tensor + 1).tolist() == [6] * 4


def test_freed_memory_is_overwritten_and_used_again() -> None:
    toy.set_capacity(4096)
    tensor = torch.ones(1024, device="toy")
    del tensor
    assert (torch.empty(1024, device="toy").cpu() != 1).all()
    assert toy.used_bytes() <= 4096


def test_memory_that_is_freed_while_it_is_copied_is_a_fault() -> None:
    tensor, target = torch.ones(64, dtype=torch.uint8, device="toy"), pinned(64, 0)
    toy.allow(0)
    with torch.Stream("toy:0"):
        target.copy_(tensor, non_blocking=True)
    del tensor
    torch.accelerator.current_stream().synchronize()
    assert toy.faults() == 1
    toy.allow(toy.ALL)
    torch.accelerator.synchronize()


def test_device_runs_out_of_memory() -> None:
    toy.set_capacity(1 << 20, device=1)
    with pytest.raises(torch.OutOfMemoryError, match="toy:1 is out of memory"):
        torch.empty(2 << 20, dtype=torch.uint8, device="toy:1")
    assert torch.ones(3, device="toy:1").sum() == 3


def test_wait_for_a_device_that_has_failed_raises() -> None:
    target = pinned(1000, 0)
    source = torch.ones(1000, dtype=torch.uint8, device="toy")
    event = torch.Event("toy:0")
    toy.allow(10)
    target.copy_(source, non_blocking=True)
    event.record()
    toy.settle(copies=1)
    toy.fail()
    for wait in (torch.accelerator.synchronize, torch.accelerator.current_stream().synchronize, event.synchronize):
        with pytest.raises(RuntimeError, match="toy:0 has failed"):
            wait()
    assert int(target.sum()) == 10
    assert torch.ones(3, device="toy:1").sum() == 3


@pytest.mark.parametrize("device", DEVICES)
def test_generator_draws_the_same_from_the_same_state(device: str) -> None:
    torch.manual_seed(3)
    own = torch.Generator(device)
    own.set_state(toy.get_rng_state(device))
    cpu = torch.get_rng_state()

    def draw(generator: torch.Generator | None) -> list[torch.Tensor]:
        return [
            torch.randn(5, device=device, generator=generator),
            torch.randperm(9, device=device, generator=generator),
            torch.bernoulli(torch.full((20,), 0.5, device=device), generator=generator),
        ]

    first = draw(None)
    second = draw(None)
    assert all(map(torch.equal, draw(own), first))
    assert not any(map(torch.equal, first, second))
    state = toy.get_rng_state(device)
    dropped = nn.functional.dropout(torch.ones(50, device=device))
    toy.set_rng_state(state, device)
    assert torch.equal(nn.functional.dropout(torch.ones(50, device=device)), dropped)
    assert torch.equal(torch.get_rng_state(), cpu), "the generator of the CPU drew nothing"


def test_models_train_with_the_bits_of_the_cpu() -> None:
    """All that they draw is drawn on the CPU."""

    def trained(device: str) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
        batches = torch.randn(3, 4, 3, 8, 8)
        model.to(device)
        for batch in batches.to(device):
            nn.functional.cross_entropy(model(batch), torch.arange(4, device=device)).backward()
            step(model, 0.01)
        return [value.cpu() for value in model.state_dict().values()]

    assert all(map(torch.equal, trained("toy:1"), trained("cpu")))


def test_mixed_precision_scales_gradients_and_skips_a_step_that_overflows() -> None:
    layer = nn.Linear(4, 4, device="toy")
    optimizer, scaler = Sgd(layer), torch.amp.GradScaler("toy", init_scale=8.0)
    before = layer.weight.detach().clone()
    for factor, scale in ((1e30, 4.0), (1.0, 4.0)):
        with torch.autocast("toy", torch.float16):
            out = layer(torch.ones(2, 4, device="toy"))
        assert out.dtype is torch.float16
        scaler.scale(out.float().sum() * factor * factor).backward()
        scaler.step(optimizer)  # type: ignore[arg-type]
        scaler.update()
        layer.zero_grad()
        assert scaler.get_scale() == scale
        assert torch.equal(layer.weight, before) == (factor > 1)


def test_thread_begins_on_the_first_stream_of_the_first_device() -> None:
    with torch.Stream("toy:1"), ThreadPoolExecutor(1) as pool:
        assert torch.accelerator.current_stream(1).stream_id == 1
        assert pool.submit(torch.accelerator.current_device_index).result() == 0
        assert pool.submit(lambda: torch.accelerator.current_stream(1).stream_id).result() == 0


def test_reason_of_a_skipped_test_says_what_is_missing(tmp_path: Path) -> None:
    assert not build.missing()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "library", lambda: tmp_path / "library.so")
        assert "make dev" in build.missing()
        patch.setattr(build, "COMPILER", "no-such-compiler")
        assert build.missing() == "there is no C++ compiler (no-such-compiler) for the simulated accelerator"
