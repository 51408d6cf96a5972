"""Copies trees of tensors, and checks tensors for NaN and infinity."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


def owned(value: Any) -> Any:
    """Return a copy of the tree `value` with copies of its tensors."""
    return mapped(value, lambda tensor: tensor.detach().clone())


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return a copy of the tree `value` with each tensor replaced by the result of `function`."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        tree = copy.copy(value)  # a copy keeps the class, such as OrderedDict or Counter
        for key, item in value.items():
            tree[key] = mapped(item, function)
        return tree
    if type(value) in (list, tuple, set):
        return type(value)(mapped(item, function) for item in value)
    if type(value) is deque:
        return deque((mapped(item, function) for item in value), value.maxlen)
    if type(value) in (Namespace, SimpleNamespace):
        return type(value)(**mapped(vars(value), function))
    return value


def tensors_of(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    mapped(value, found.append)
    return found


@torch.no_grad()
def norms(parameters: Iterable[Tensor]) -> list[Tensor]:
    """
    Return the 2-norms of all floating-point tensors, one tensor of norms per device and type. The norm of a tensor that
    holds NaN or infinity is not finite.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.dtype is torch.float64:
            groups.setdefault((parameter.device, torch.float64), []).append(parameter.detach())
        elif parameter.dtype in (torch.float32, torch.float16, torch.bfloat16):
            # a norm in float16 would overflow
            groups.setdefault((parameter.device, torch.float32), []).append(parameter.detach())
    return [torch.stack(torch._foreach_norm(group, 2, dtype=dtype)) for (_, dtype), group in groups.items()]


def are_finite(loss: Any, parameters: Iterable[Tensor]) -> bool:
    values = norms(parameters)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        values.append(loss.detach())
    return all(bool(torch.isfinite(value).all()) for value in values)
