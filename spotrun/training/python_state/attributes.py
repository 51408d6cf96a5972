"""Loads plain values in attributes of the module from checkpoints of spotrun 0.1."""

from __future__ import annotations

from collections import deque
from typing import Any

from spotrun.training.tensors import mapped


def load(module: Any, saved: dict[str, Any]) -> None:
    """Restore the saved attributes of `module`."""
    devices = iter(saved["devices"])
    for name, value in mapped(saved["values"], lambda tensor: tensor.to(next(devices))).items():
        holder = getattr(module, name, None)
        if isinstance(holder, list | deque | dict):  # another part of the script may hold the same object
            holder.clear()
            (holder.update if isinstance(holder, dict) else holder.extend)(value)
        else:
            setattr(module, name, value)
