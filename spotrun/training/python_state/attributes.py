"""Restores a torch module's attributes that are plain values, from a checkpoint that spotrun 0.1 saved."""

from __future__ import annotations

from collections import deque
from typing import Any

from spotrun.training.tensors import mapped


def load(module: Any, saved: dict[str, Any]) -> None:
    devices = iter(saved["devices"])
    for name, value in mapped(saved["values"], lambda tensor: tensor.to(next(devices))).items():
        holder = getattr(module, name, None)
        if isinstance(holder, list | deque | dict):  # in place: other parts of the script may hold it
            holder.clear()
            (holder.update if isinstance(holder, dict) else holder.extend)(value)
        else:
            setattr(module, name, value)
