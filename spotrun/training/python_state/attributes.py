"""
Plain values that a script keeps in attributes of its module: `self.training_step_outputs`, a counter.

Frameworks do not save them, and what an epoch's end computes from them would lack the batches before a resume. So a
snapshot holds those that have changed since fit() began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from spotrun.training.tensors import mapped, owned

PLAIN = (bool, int, float, str, type(None))
LARGE_ELEMENTS = 1 << 16
"""A larger tensor is a table. It counts as changed only if it is another object."""


class Attributes:
    """Those of one module, as they were when this object was made. Names in `left_out` are not the script's."""

    def __init__(self, module: Any, left_out: Collection[str]) -> None:
        self._module = module
        self._left_out = left_out
        self._before = {name: _small(value) for name, value in self._plain().items()}

    def _plain(self) -> dict[str, Any]:
        """Public ones only: what begins with an underscore is the framework's or torch's."""
        public = {name: value for name, value in vars(self._module).items() if not name.startswith("_")}
        values = {name: _builtin(value) for name, value in public.items() if name not in self._left_out}
        return {name: value for name, value in values.items() if _is_plain(value)}

    def changed(self) -> dict[str, Any]:
        """What to save, with the living tensors, and the device of each tensor."""
        now = {n: v for n, v in self._plain().items() if n not in self._before or not _same(self._before[n], v)}
        devices: list[str] = []
        mapped(now, lambda tensor: devices.append(str(tensor.device)))
        return {"values": now, "devices": devices}

    def load(self, saved: dict[str, Any]) -> None:
        devices = iter(saved["devices"])
        for name, value in mapped(saved["values"], lambda tensor: tensor.to(next(devices))).items():
            holder = getattr(self._module, name, None)
            if isinstance(holder, list | deque | dict):  # another part of the script may hold it too
                holder.clear()
                (holder.update if isinstance(holder, dict) else holder.extend)(value)
            else:
                setattr(self._module, name, value)


def _builtin(value: Any) -> Any:
    """A defaultdict is saved as a dict, a deque as a list. `load` fills the ones that the script has made."""
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, deque) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, Tensor):
        return type(value) is Tensor
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is set:
        return all(type(item) in PLAIN for item in value)
    if type(value) is dict:
        return all(type(key) in PLAIN for key in value) and all(map(_is_plain, value.values()))
    return type(value) in PLAIN


def _small(value: Any) -> Any:
    """A copy to compare with later."""
    return mapped(value, lambda tensor: owned(tensor) if tensor.numel() <= LARGE_ELEMENTS else tensor)


def _same(before: Any, now: Any) -> bool:
    if type(before) is not type(now):
        return False
    if isinstance(now, Tensor):
        if before is now:
            return True
        alike = before.shape == now.shape and before.dtype == now.dtype and before.device == now.device
        return alike and now.numel() <= LARGE_ELEMENTS and torch.equal(before, now)
    if isinstance(now, list | tuple):
        return len(before) == len(now) and all(map(_same, before, now))
    if isinstance(now, dict):
        return list(before) == list(now) and all(_same(before[key], now[key]) for key in now)
    return bool(before == now)
