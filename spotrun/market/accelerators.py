"""The peak speeds of accelerators, for comparing their prices."""

from __future__ import annotations

import re
from difflib import get_close_matches

PEAK_TFLOPS = {
    "T4": 65.0,  # FP16: https://www.nvidia.com/en-us/data-center/tesla-t4/
    "V100": 125.0,  # FP16, SXM2: https://www.nvidia.com/en-us/data-center/v100/
    "A10G": 70.0,  # https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf
    "A100": 312.0,  # https://www.nvidia.com/en-us/data-center/a100/
    "A100-80GB": 312.0,  # the same
    "L4": 121.0,  # https://www.nvidia.com/en-us/data-center/l4/, half of the figure with sparsity
    "L40S": 362.0,  # https://www.nvidia.com/en-us/data-center/l40s/
    "H100": 989.5,  # SXM5: https://www.nvidia.com/en-us/data-center/h100/, half of the figure with sparsity
    "H200": 989.5,  # https://www.nvidia.com/en-us/data-center/h200/, half of the figure with sparsity
    "B200": 2250.0,  # https://www.nvidia.com/en-us/data-center/hgx/, half of the figure with sparsity
}
"""
Peak speed in TFLOPS of dense BF16 on tensor cores (FP16 on an accelerator without BF16), from data sheets as of
2026-11-22.

A training whose speed is limited by memory or by data does not reach these figures. The share of the figure that such a
training reaches is different on each accelerator.
"""
LIKE = 0.7
"""
Minimum similarity (difflib ratio) at which an unknown name is assumed to be a misspelled known name: V101 for V100, or
A10 for A10G.
"""


def meant_by(name: str) -> str | None:
    """
    Return the accelerator in the table that the user probably meant by `name`. Return None if `name` is in the table,
    or if nothing in the table is similar. If `name` says how much memory the accelerator has, so does the result, where
    the table has two versions.

    A result does not prove a mistake, because clouds rent out some accelerators that the table lacks.
    """
    written = name.upper()
    if written in PEAK_TFLOPS:
        return None
    if memory := re.fullmatch(r"(\w+)-\d+G?B?", written, re.ASCII):  # SkyPilot writes H100-80GB and A100-80GB
        same = [name for name in PEAK_TFLOPS if name in (f"{written.rstrip('GB')}GB", memory[1])]
        return max(same, key=len, default=None)
    return next(iter(get_close_matches(written, PEAK_TFLOPS, 1, LIKE)), None)


def count_in(accelerators: str) -> int:
    """Return the count in `NAME:COUNT`; 0 if `accelerators` is empty."""
    return int(accelerators.partition(":")[2] or 1) if accelerators else 0


def peak_tflops(accelerators: str) -> float | None:
    """
    Return the total TFLOPS of the accelerators `NAME:COUNT`; None if NAME is not in the table, or if `accelerators` is
    empty.
    """
    name, _, count = accelerators.partition(":")
    peak = PEAK_TFLOPS.get(name)
    return None if peak is None else peak * int(count or 1)
