"""Trees and sets of tensors: copies of them, and whether their values are sound."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def owned(value: Any) -> Any:
    """The same tree with tensors of its own."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        tree = copy.copy(value)  # an OrderedDict or Counter stays one
        for key, item in value.items():
            tree[key] = owned(item)
        return tree
    if type(value) in (list, tuple):
        return type(value)(owned(item) for item in value)
    return value


@torch.no_grad()
def norms(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The 2-norms of all that are floating-point, in one pass: NaN and infinity show in them."""
    wide, narrow = [], []
    for parameter in parameters:
        if parameter.dtype is torch.float64:
            wide.append(parameter.detach())
        elif parameter.dtype in (torch.float32, torch.float16, torch.bfloat16):
            narrow.append(parameter.detach())
    # float16 would overflow in its own type
    found = torch._foreach_norm(narrow, 2, dtype=torch.float32) if narrow else ()
    return [*found, *(torch._foreach_norm(wide, 2) if wide else ())]


def are_finite(loss: Any, parameters: Iterable[Tensor]) -> bool:
    values = norms(parameters)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        values.append(loss.detach())
    return all(bool(torch.isfinite(value).all()) for value in values)
