"""Translates between Google's names of GPUs and spotrun's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMON_NAMES = {
    "nvidia-l4": "L4",
    "nvidia-tesla-a100": "A100",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-h100-80gb": "H100",
    "nvidia-h100-mega-80gb": "H100-MEGA",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
    "nvidia-gb200": "GB200",
    "nvidia-rtx-pro-6000": "RTX-PRO-6000",
}
"""
spotrun's names of GPUs, keyed by Google's names: https://cloud.google.com/compute/docs/gpus. For any other GPU,
spotrun's name is Google's name without `nvidia-`.
"""
BETWEEN = "_"
"""The separator of a GPU's name and its count in a label, which cannot contain a colon."""


def accelerators_of(machine_type: Mapping[str, Any]) -> str:
    """Return the accelerators of a type with built-in GPUs, such as `L4:1`; "" if it has none."""
    found = machine_type.get("accelerators", ())
    return f"{_common(found[0]['guestAcceleratorType'])}:{found[0]['guestAcceleratorCount']}" if found else ""


def in_label(accelerators: str) -> str:
    """Return accelerators such as `L4:1` in the form that a label can hold, `l4_1`."""
    return accelerators.lower().replace(":", BETWEEN)


def of_label(text: str) -> str:
    """Read the accelerators in a label; return "" if there are none."""
    name, between, count = text.partition(BETWEEN)
    return f"{name.upper()}:{count}" if between and count.isdecimal() else ""


def _common(googles: str) -> str:
    return COMMON_NAMES.get(googles, googles.removeprefix("nvidia-").removeprefix("tesla-").upper())
