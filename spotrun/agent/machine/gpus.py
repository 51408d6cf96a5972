"""
Reads how busy this machine's GPUs are, through NVML, the library of Nvidia's driver.

There are no figures on a machine without a GPU, in a container without the library (`libnvidia-ml.so.1`), or if the
driver and the library have different versions (https://docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from spotrun.folder.status_objects import Gpu

LOOKS_EVERY_S = 5.0
"""Seconds of system time between two reads of the GPUs."""
STALE_S = 30.0
"""Seconds of system time after which the figures are out of date."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""
Variable that names the GPUs that a process is allowed to use
(https://docs.nvidia.com/cuda/cuda-c-programming-guide, CUDA environment variables).
"""


class Gpus:
    """
    The GPUs that a training with the environment variables `environment` can see.

    A separate thread reads the figures, because the driver of a faulty GPU may never answer, and the agent's heartbeats
    must continue meanwhile.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._visible = environment.get(VISIBLE)
        self._answer: tuple[float, tuple[Gpu, ...]] = (float("-inf"), ())
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._work, name="gpus", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread. Do not wait for the driver's answer."""
        self._stop.set()

    @property
    def newest(self) -> tuple[Gpu, ...]:
        """The newest figures; empty if the driver reports none, or if they are too old."""
        answered_s, found = self._answer
        return found if time.monotonic() - answered_s < STALE_S else ()

    def _work(self) -> None:
        import pynvml

        begun = False
        while not self._stop.wait(LOOKS_EVERY_S):
            try:
                if not begun:
                    pynvml.nvmlInit()
                begun = True
                self._answer = (time.monotonic(), tuple(look(pynvml, self._visible)))
            except pynvml.NVMLError:  # no driver yet: some images install or reload it while they boot
                begun = False


def look(nvml: Any, visible: str | None) -> Iterator[Gpu]:
    """
    Yield the figures of each GPU that `visible` names, or of all GPUs if `visible` is None. If a GPU does not report
    its utilisation, its `share` is None. If a GPU does not report its memory, `memory_bytes` and `memory_used_bytes`
    are 0. A GPU that reports neither is left out.
    """
    for handle in _chosen(nvml, visible):
        busy = _told(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        if busy is not None or memory is not None:
            yield Gpu(
                share=None if busy is None else min(1.0, busy.gpu / 100),
                memory_bytes=0 if memory is None else memory.total,
                memory_used_bytes=0 if memory is None else memory.used,
            )


def _chosen(nvml: Any, visible: str | None) -> Iterator[Any]:
    """
    Yield the GPUs that `visible` names. As CUDA does, stop at the first name that matches no GPU.

    A number in `visible` is taken as an index in NVML's order, which is the order on the PCI bus. Unless
    CUDA_DEVICE_ORDER is PCI_BUS_ID, CUDA instead puts faster GPUs first. So on a machine with several kinds of GPU, the
    wrong GPU may be read.
    """
    by_index = (_told(nvml, nvml.nvmlDeviceGetHandleByIndex, index) for index in range(nvml.nvmlDeviceGetCount()))
    # Leave out GPUs that this process is not allowed to open. In a Slurm job, these are the GPUs that were not
    # allocated to the job, and CUDA_VISIBLE_DEVICES numbers the remaining GPUs from 0.
    every = [handle for handle in by_index if handle is not None]
    if visible is None:
        yield from every
        return
    for name in visible.split(","):
        handle = _named(nvml, every, name.strip())
        if handle is None:
            return
        yield handle


def _named(nvml: Any, every: list[Any], name: str) -> Any | None:
    """
    Return a GPU by its number or by the beginning of its UUID, or a MIG slice by its UUID; None if nothing matches.
    """
    if name.isdecimal():
        return every[int(name)] if int(name) < len(every) else None
    if name.startswith("MIG-"):
        return _told(nvml, nvml.nvmlDeviceGetHandleByUUID, name)
    begins = (handle for handle in every if (_told(nvml, nvml.nvmlDeviceGetUUID, handle) or "").startswith(name))
    return next(begins, None) if name.startswith("GPU-") else None


def _told(nvml: Any, ask: Any, of: Any) -> Any | None:
    """
    Ask the driver for a figure of a GPU, and return it. Return None if the driver does not report it, as for the
    utilisation of a MIG slice.
    """
    try:
        return ask(of)
    except nvml.NVMLError:
        return None
