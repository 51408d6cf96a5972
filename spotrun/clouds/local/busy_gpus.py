"""
Uses NVML to detect other processes that compute on this machine's GPUs: https://docs.nvidia.com/deploy/nvml-api

A machine without a GPU or without a driver counts as free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from spotrun.units import count_of

LOOKS_EVERY_S = 10.0
"""Minimum seconds of system time between two checks."""
ANSWERS_WITHIN_S = 3.0
"""
Maximum seconds of system time to wait for NVML's answer. A faulty GPU's driver may never answer. A GPU without an
answer counts as taken, because it cannot train.
"""


def taken_by(nvml: Any) -> str:
    """
    Return a text that names the processes on the GPUs; "" if there are none. Programs that use a GPU only for graphics
    do not count.
    """
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        found = {each.pid for handle in handles for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except nvml.NVMLError:
        return ""
    if not found:
        return ""
    named = ", ".join(str(pid) for pid in sorted(found)[:5])
    return f"{count_of(len(found), 'other process computes', 'other processes compute')} on its GPUs ({named})"


def look() -> str:
    import pynvml

    return taken_by(pynvml)


class BusyGpus:
    """
    Asks NVML in a separate thread, at most once every `LOOKS_EVERY_S`. A caller waits at most `ANSWERS_WITHIN_S`.
    """

    def __init__(self, look: Callable[[], str] = look, within_s: float = ANSWERS_WITHIN_S) -> None:
        self._look = look
        self._within_s = within_s
        self._looked_s = float("-inf")
        self._answer = ""
        self._asking: threading.Thread | None = None

    def taken_by(self) -> str:
        """Return a text that names the processes on the GPUs; "" if there are none."""
        if self._asking is not None and self._asking.is_alive():
            return self._answer
        if time.monotonic() - self._looked_s >= LOOKS_EVERY_S:
            self._looked_s = time.monotonic()
            self._answer = "its GPU driver does not answer"
            self._asking = threading.Thread(target=self._ask, name="busy-gpus", daemon=True)
            self._asking.start()
            self._asking.join(self._within_s)
        return self._answer

    def _ask(self) -> None:
        self._answer = self._look()
