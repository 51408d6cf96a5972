"""How busy a machine is, and for how long a training waits for its data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from spotrun.agent.machine import usage
from spotrun.agent.machine.usage import DataWait, Machine, used_in
from spotrun.folder.status_objects import Busy, Gpu, MachineUse, Usage
from spotrun.trainer_link import Progress
from spotrun.training.data.loader import ExactLoader
from spotrun.training.place import PassStart

GPUS = (
    Gpu(share=0.9, memory_bytes=8, memory_used_bytes=0),
    Gpu(share=0.1, memory_bytes=8, memory_used_bytes=4),
    Gpu(memory_bytes=8, memory_used_bytes=4),
    Gpu(),
)
MEMORY = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    4000000 kB\n"


def tell(folder: Path, *ticks: int, own_cpu_s: Callable[[], float] | None = None) -> Machine:
    (folder / "stat").write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3\n")
    (folder / "meminfo").write_text(MEMORY)
    return Machine(folder, own_cpu_s)


def test_the_machine_is_looked_at_since_the_look_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither idling, nor waiting for a disk, nor what a hypervisor took is computing."""
    monkeypatch.setattr(usage, "LOOKS_EVERY_S", 0.0)
    machine = tell(tmp_path, 100, 0, 100, 1000, 50, 0, 0, 0, 0, 0)
    tell(tmp_path, 140, 5, 110, 1030, 60, 3, 2, 0, 0, 0)
    found = machine.usage()
    assert found is not None
    assert found.cpu_share == pytest.approx(0.6)
    assert (found.memory_bytes, found.memory_used_bytes) == (16_000_000 * 1024, 12_000_000 * 1024)
    assert machine.usage() == found, "no tick has passed"


def test_own_share_is_of_the_processors_that_the_run_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Here 2 of 8 processors, of which it has used 1.5 for 10 s. Other programs keep all of them busy."""
    monkeypatch.setattr(usage, "LOOKS_EVERY_S", 0.0)
    monkeypatch.setattr(usage.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(usage.os, "sched_getaffinity", lambda _: {3, 4})
    own_cpu_s = iter([100.0, 115.0, 0.0])
    machine = tell(tmp_path, *[0] * 10, own_cpu_s=lambda: next(own_cpu_s))
    ticks = os.sysconf("SC_CLK_TCK")
    tell(tmp_path, 8 * 10 * ticks, *[0] * 9)
    found = machine.usage()
    assert found is not None
    assert (found.cpus, found.cpu_share) == (8, 1.0)
    assert (found.own_cpus, found.own_cpu_share) == (2, pytest.approx(0.75))
    tell(tmp_path, 8 * 20 * ticks, *[0] * 9)
    ended = machine.usage()
    assert ended is not None
    assert ended.own_cpu_share == 0, "of processes that have ended, and for which nothing has waited"


@pytest.mark.parametrize("missing", ["stat", "meminfo"])
def test_a_machine_that_does_not_tell_has_no_figures(tmp_path: Path, missing: str):
    machine = tell(tmp_path, *range(10))
    (tmp_path / missing).unlink()
    assert machine.usage() is None


def test_this_machine_tells(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(usage, "LOOKS_EVERY_S", 0.0)
    machine, give_up_at = Machine(), time.monotonic() + 60
    while (found := machine.usage()) is None or not found.cpu_share or not found.own_cpu_share:
        assert time.monotonic() < give_up_at
    assert 0 < found.cpu_share <= 1
    assert 0 < found.own_cpu_share <= 1
    assert 0 < found.memory_used_bytes < found.memory_bytes


def test_usage_is_summed_while_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From the second look of a training on: what was before the first one may be a download."""
    now_s = iter([0.0, 10.0, 20.0, 30.0, 34.0, 36.0])
    monkeypatch.setattr(usage.time, "monotonic", lambda: next(now_s))
    machine = tell(tmp_path, *[0] * 10)
    for ticks, trains in ((100, False), (200, True), (300, True), (400, True), (500, True), (600, False)):
        tell(tmp_path, ticks // 2, 0, 0, ticks // 2, *[0] * 6)
        machine.usage(GPUS, trains=trains)
    used = machine.used
    assert used.cpu == Busy(busy_s=10.0, of_s=20.0), "the fifth comes too early, and the sixth trains no more"
    assert (used.memory.share, used.gpu.share) == (0.75, 0.5)
    assert used.gpu_memory.share == pytest.approx(1 / 3)
    assert {used.memory.of_s, used.gpu.of_s, used.gpu_memory.of_s} == {20.0}


def test_gpus_that_tell_no_share_are_not_taken_for_idle():
    usage_of_slices = Usage(cpus=1, cpu_share=1.0, memory_bytes=0, memory_used_bytes=0, gpus=(GPUS[2],))
    used = used_in(10.0, usage_of_slices)
    assert (used.memory.share, used.gpu.share, used.gpu_memory.share) == (None, None, 0.5)
    assert (used + MachineUse(gpu=Busy(busy_s=1.0, of_s=2.0))).times(2.0).gpu == Busy(busy_s=2.0, of_s=4.0)


def at(data_s: float, phase: str = "train") -> Progress:
    return Progress(epoch=0, batch=1, batches=9, step=1, epochs=1, phase=phase, data_s=data_s)  # type: ignore[arg-type]


def test_the_share_is_that_of_the_last_minute_of_training():
    wait = DataWait()
    for second in range(200):
        wait.progressed(at(0.1 * second if second < 100 else 10.0 + 0.5 * (second - 100)), float(second))
    assert wait.share == pytest.approx(0.5)
    assert (wait.trained.waited_s, wait.trained.seconds) == pytest.approx((59.5, 199.0))


def test_data_wait_is_reported_once_and_only_when_it_lasts():
    wait, told = DataWait(), []
    for second in range(300):
        wait.progressed(at(0.29 * second if second < 100 else 29.0 + 0.42 * (second - 100)), float(second))
        told.append(wait.news())
        assert second >= 100 or not told[-1]
    (news,) = filter(None, told)
    assert news.startswith("the training waits for its data 3")


def test_validation_and_a_new_process_restart_the_data_wait():
    for interruption in (at(9.0, "validate"), at(0.0)):
        wait = DataWait()
        for second in range(30):
            wait.progressed(at(float(second)), float(second))
        assert wait.share == 1.0
        wait.progressed(interruption, 31.0)
        assert wait.share is None
        assert (wait.trained.waited_s, wait.trained.seconds) == (29.0, 29.0)


def test_a_new_trainer_counts_from_nothing_and_is_not_told_again():
    wait, told = DataWait(), []
    for _ in range(2):
        for second in range(30):
            wait.progressed(at(float(second)), float(second))
            told.append(wait.news())
        wait.new_trainer()
    assert len(list(filter(None, told))) == 1
    assert (wait.trained.waited_s, wait.trained.seconds) == (58.0, 58.0)


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.tensor(index)


class SlowStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            time.sleep(0.01)
            yield index


@pytest.mark.parametrize("data", [Slow(), SlowStream()], ids=["indexed", "stream"])
def test_a_loader_counts_how_long_its_training_waits_and_not_its_way_to_its_place(data: Dataset):
    begin = iter([PassStart(0, 2, number=0), PassStart(1, 0, number=0)])
    exact = ExactLoader(DataLoader(data, batch_size=2), 0, 0, lambda _: next(begin), lambda _: False)
    batches = iter(exact.proxy)
    assert exact.waited_s == 0
    assert len(list(batches)) == 2
    assert (first := exact.waited_s) >= 0.04
    assert len(list(exact.proxy)) == 4
    assert exact.waited_s >= first + 0.08
