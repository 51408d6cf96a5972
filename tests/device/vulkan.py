"""
An accelerator that is not ours: torchvulkan, a backend of PyTorch, with a driver such as Mesa's lavapipe, which
computes on the CPU. It has neither streams nor pinned memory.

The folder `PLUGIN`, `PACKAGES` and the repository in PYTHONPATH make it the accelerator of each process.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.support.repository import ROOT

PACKAGES = ROOT / ".vulkan"
PLUGIN = Path(__file__).with_name("vulkan_plugin")
_DRIVERS = [Path(folder, "vulkan/icd.d") for folder in ("/etc", "/usr/share", "/usr/local/share")]


def load() -> None:
    importlib.import_module("torchvulkan")


def missing() -> str:
    """Return the reason why there is no such accelerator; "" if there is one."""
    if not (PACKAGES / "torchvulkan").exists():
        return "torchvulkan is not installed: make .vulkan"
    if not any(driver for folder in _DRIVERS for driver in folder.glob("*.json")):
        return "there is no driver of Vulkan (Debian: mesa-vulkan-drivers)"
    return ""
