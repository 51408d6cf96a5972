"""Collects the facts on which the last bits of a result may depend: the CPU, its threads, the libraries."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

Facts = dict[str, str | int]

NAMES = {
    "cpu": "CPU",
    "threads": "thread count",
    "torch": "torch",
    "framework": "framework",
    "lightning": "lightning",
    "python": "python",
}
"""Entries of a snapshot's meta that have to be unchanged for a bit-identical resume, and their names in messages."""


def facts() -> Facts:
    """Return the facts about this process that go into each snapshot's meta."""
    return {
        "cpu": f"{_cpu_model()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        **_driver(),
    }


@cache
def _driver() -> Facts:
    try:
        return driver_in(Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return {}


def driver_in(text: str) -> Facts:
    """Return the version in the line `NVRM version: …` of the NVIDIA driver's file; empty if there is no such line."""
    found = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return {"driver": f"NVIDIA {found[1]}"} if found else {}


@cache
def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def differences(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """
    Return a text such as `CPU (A, then B)` for each entry of NAMES whose values in `before` and `now` differ. An entry
    that is missing in either is ignored.
    """
    return [
        f"{name} ({before[key]}, then {now[key]})"
        for key, name in NAMES.items()
        if key in before and key in now and before[key] != now[key]
    ]
