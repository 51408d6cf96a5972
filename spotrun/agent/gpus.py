"""
How busy the NVIDIA GPUs of a machine are, by NVML (https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

import pynvml

LOOKS_AVERAGED = 12
"""NVML says which share of the last second at most, or less, had work on a GPU: one look is chance."""


class GpuUsage(NamedTuple):
    """
    Of all GPUs together: for which share of the time work ran on one, however small, over the last looks; and how much
    of their memory is taken.
    """

    gpus: int
    share: float
    memory_bytes: int
    memory_used_bytes: int


class Gpus:
    """
    Those that a training may use. `CUDA_VISIBLE_DEVICES` of `environment` names them by number, which is NVML's where
    all are of one type, or by UUID; without it they are all. A part of a GPU (MIG) has no figures.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._named = environment.get("CUDA_VISIBLE_DEVICES")
        self._shares: deque[float] = deque(maxlen=LOOKS_AVERAGED)
        self._handles: list[Any] | None = None

    def _open(self) -> list[Any]:
        """None where there is no driver, no library, or a name that they do not know. It may take seconds."""
        try:
            pynvml.nvmlInit()
            return [*map(self._handle, self._names())]
        except pynvml.NVMLError:
            return []

    def _names(self) -> list[str]:
        if self._named is None:
            return [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return [name for name in map(str.strip, self._named.split(",")) if name]

    @staticmethod
    def _handle(name: str) -> Any:
        if name.isdecimal():
            return pynvml.nvmlDeviceGetHandleByIndex(int(name))
        return pynvml.nvmlDeviceGetHandleByUUID(name)

    def usage(self) -> GpuUsage | None:
        """None where there is none, or one does not answer."""
        if self._handles is None:
            self._handles = self._open()
        if not self._handles:
            return None
        try:
            shares = [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in self._handles]
            memories = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles]
        except pynvml.NVMLError:
            self._shares.clear()
            return None
        self._shares.append(min(1.0, fmean(shares)))
        return GpuUsage(
            gpus=len(self._handles),
            share=fmean(self._shares),
            memory_bytes=sum(memory.total for memory in memories),
            memory_used_bytes=sum(memory.used for memory in memories),
        )
