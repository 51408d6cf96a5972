"""How busy GPUs are, by a driver's library that is played: what it tells, and the ways in which it does not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from spotrun.agent.machine import gpus
from spotrun.agent.machine.gpus import Gpus, look
from spotrun.folder.status_objects import Gpu

GIB = 1 << 30


class NVMLError(Exception):
    pass


class Device:
    """One GPU: its share in percent and its memory, each None if it refuses to tell; or nobody may open it at all."""

    def __init__(self, uuid: str, busy: int | None = 0, memory: int | None = 16, *, opens: bool = True) -> None:
        self.uuid, self.busy, self.memory, self.opens = uuid, busy, memory, opens


class Nvml:
    """As much of `pynvml` as is asked for. `begins` are the answers to `nvmlInit`, False for an error."""

    NVMLError = NVMLError

    def __init__(self, *devices: Device, slices: tuple[Device, ...] = (), begins: tuple[bool, ...] = ()) -> None:
        self._devices, self._slices, self._begins = devices, slices, list(begins)
        self.looked = threading.Event()

    def nvmlInit(self) -> None:
        if self._begins and not self._begins.pop(0):
            raise NVMLError("NVML Shared Library Not Found")

    def nvmlDeviceGetCount(self) -> int:
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return _or_refuse(self._devices[index] if self._devices[index].opens else None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        return _or_refuse(next((each for each in self._slices if each.uuid == uuid), None))

    def nvmlDeviceGetUUID(self, device: Device) -> str:
        return device.uuid

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> Any:
        return SimpleNamespace(gpu=_or_refuse(device.busy), memory=1)

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:
        self.looked.set()
        return SimpleNamespace(total=_or_refuse(device.memory) * GIB, used=4 * GIB)


def _or_refuse(answer: Any) -> Any:
    if answer is None:
        raise NVMLError("Not Supported")
    return answer


FOUR = tuple(Device(f"GPU-{name}-1", busy) for name, busy in zip("abcd", (10, 20, 30, 40), strict=True))


def shares(visible: str | None, *devices: Device, slices: tuple[Device, ...] = ()) -> list[float | None]:
    return [gpu.share for gpu in look(Nvml(*devices, slices=slices), visible)]


def test_each_gpu_tells_its_share_and_its_memory():
    assert list(look(Nvml(FOUR[0]), None)) == [Gpu(share=0.1, memory_bytes=16 * GIB, memory_used_bytes=4 * GIB)]
    assert shares(None, *FOUR) == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("2,0", [0.3, 0.1]),
        (" 1 , 3 ", [0.2, 0.4]),
        ("GPU-c", [0.3]),
        ("1,-1,2", [0.2]),
        ("0,4,1", [0.1]),
        ("", []),
        ("NoDevFiles", []),
        ("GPU-x", []),
    ],
)
def test_usage_covers_the_visible_gpus_up_to_the_first_invalid_one(visible: str, found: list[float]):
    assert shares(visible, *FOUR) == found


def test_a_job_that_may_open_some_devices_of_its_node_counts_these():
    closed = Device("GPU-x-1", 99, opens=False)
    assert shares(None, closed, *FOUR[:2]) == [0.1, 0.2]
    assert shares("1", closed, *FOUR[:2]) == [0.2]


def test_a_sliced_gpu_tells_its_memory_and_no_share():
    whole = Device("GPU-a-1", busy=None, memory=80)
    slice_of_it = Device("MIG-1", busy=None, memory=10)
    assert list(look(Nvml(whole), None)) == [Gpu(memory_bytes=80 * GIB, memory_used_bytes=4 * GIB)]
    (found,) = look(Nvml(whole, slices=(slice_of_it,)), "MIG-1")
    assert (found.share, found.memory_bytes) == (None, 10 * GIB)
    assert shares("MIG-2", whole, slices=(slice_of_it,)) == []


def test_a_gpu_without_memory_of_its_own_tells_its_share():
    assert list(look(Nvml(Device("GPU-a-1", 70, memory=None)), None)) == [Gpu(share=0.7)]


def test_one_that_tells_nothing_is_left_out():
    assert shares(None, Device("GPU-lost-1", busy=None, memory=None), FOUR[1]) == [0.2]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Gpus]:
    """The GPUs of this machine, which answers as it is told, without a pause between two looks."""

    def begin(nvml: Any) -> Gpus:
        monkeypatch.setattr(gpus, "LOOKS_EVERY_S", 0.001)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        found = Gpus({"CUDA_VISIBLE_DEVICES": "0"})
        found.start()
        return found

    return begin


def test_a_driver_that_is_installed_during_the_boot_is_found(asked: Callable[[Any], Gpus]):
    nvml = Nvml(*FOUR, begins=(False, False, True))
    found = asked(nvml)
    while not found.newest:
        assert nvml.looked.wait(60)
    found.stop()
    assert [gpu.share for gpu in found.newest] == [0.1]


def test_reloaded_driver_is_found_again(asked: Callable[[Any], Gpus], monkeypatch: pytest.MonkeyPatch):
    nvml, begun, counts = Nvml(*FOUR), [], iter([None])
    monkeypatch.setattr(nvml, "nvmlInit", lambda: begun.append(True))
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", lambda: _or_refuse(next(counts, 4)))
    found = asked(nvml)
    while not found.newest:
        assert nvml.looked.wait(60)
    found.stop()
    assert len(begun) == 2


def test_a_driver_that_never_answers_holds_nothing_up_and_its_last_answer_ages(
    asked: Callable[[Any], Gpus], monkeypatch: pytest.MonkeyPatch
):
    nvml, answers = Nvml(*FOUR), threading.Event()
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", lambda: nvml.looked.set() or (answers.wait(60) and 4))
    found = asked(nvml)
    assert nvml.looked.wait(60)
    assert found.newest == ()
    answers.set()
    while not found.newest:
        assert nvml.looked.wait(60)
    found.stop()
    monkeypatch.setattr(gpus, "STALE_S", -1.0)
    assert found.newest == ()


def test_the_library_of_this_machine_answers_or_says_that_it_is_not_there():
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    assert all(gpu.memory_used_bytes <= gpu.memory_bytes for gpu in look(pynvml, None))
