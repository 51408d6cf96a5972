"""How busy GPUs are, by a driver that is not there."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml
import pytest

from spotrun.agent import usage
from spotrun.agent.gpus import LOOKS_AVERAGED, Gpus
from spotrun.agent.usage import Machine

GIB = 1 << 30
UNKNOWN, NOT_SUPPORTED, LOST = (
    pynvml.NVMLError(code)
    for code in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_GPU_IS_LOST)
)


@dataclass
class Driver:
    """GPUs by their UUIDs, in NVML's order, with how busy each is in percent. Those that are `broken` fail so."""

    busy: dict[str, int]
    broken: dict[str, Exception] = field(default_factory=dict)

    def at(self, number: int) -> str:
        if number >= len(self.busy):
            raise UNKNOWN
        return list(self.busy)[number]

    def named(self, uuid: str) -> str:
        if uuid not in self.busy:
            raise UNKNOWN
        return uuid

    def rates(self, uuid: str) -> SimpleNamespace:
        if uuid in self.broken:
            raise self.broken[uuid]
        return SimpleNamespace(gpu=self.busy[uuid], memory=0)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver({"GPU-a": 100, "GPU-b": 50, "GPU-c": 0})
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(found.busy))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", found.at)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", found.named)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", found.rates)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: SimpleNamespace(total=16 * GIB, used=4 * GIB))
    return found


def test_a_machine_without_a_driver_has_no_figures():
    assert Gpus({}).usage() is None


@pytest.mark.parametrize(
    ("visible", "gpus", "share"),
    [(None, 3, 0.5), ("0", 1, 1.0), ("1, 2", 2, 0.25), ("GPU-b", 1, 0.5), ("", None, None), ("7", None, None)],
)
def test_those_that_the_training_may_use_are_looked_at(
    driver: Driver, visible: str | None, gpus: int | None, share: float | None
):
    """Where the driver does not know a name, CUDA would use none from there on."""
    found = Gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}).usage()
    if gpus is None:
        assert found is None
    else:
        assert found == (gpus, share, gpus * 16 * GIB, gpus * 4 * GIB)


def test_a_look_is_averaged_with_those_before(driver: Driver):
    gpus = Gpus({"CUDA_VISIBLE_DEVICES": "0"})
    assert gpus.usage() is not None
    driver.busy["GPU-a"] = 0
    found = gpus.usage()
    assert found is not None
    assert found.share == 0.5
    for _ in range(LOOKS_AVERAGED):
        found = gpus.usage()
    assert found is not None
    assert found.share == 0.0


@pytest.mark.parametrize("error", [NOT_SUPPORTED, LOST])
def test_one_that_does_not_answer_has_no_figures_until_it_does(driver: Driver, error: Exception):
    gpus = Gpus({})
    driver.broken["GPU-b"] = error
    assert gpus.usage() is None
    driver.broken.clear()
    assert gpus.usage() is not None


def test_they_are_told_with_what_the_machine_tells(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(usage, "LOOKS_EVERY_S", 0.0)
    machine = Machine(gpus=Gpus({}))
    found = None
    while found is None:
        found = machine.usage()
    assert (found.gpus, found.gpu_share, found.gpu_memory_used_bytes) == (3, 0.5, 12 * GIB)
