"""Trees and sets of tensors: copies of them, and whether their values are sound."""

from __future__ import annotations

import contextlib
import copy
import mmap
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20


def owned(value: Any) -> Any:
    """The same tree with tensors of its own."""
    if isinstance(value, Tensor):
        return _in_huge_pages(value) if _is_large(value) else value.detach().clone()
    if isinstance(value, dict):
        tree = copy.copy(value)  # an OrderedDict or Counter stays one
        for key, item in value.items():
            tree[key] = owned(item)
        return tree
    if type(value) in (list, tuple):
        return type(value)(owned(item) for item in value)
    return value


@torch.no_grad()
def _in_huge_pages(tensor: Tensor) -> Tensor:
    """A copy. To touch new memory in pages of 4 kB takes five times as long as to copy into it."""
    memory = mmap.mmap(-1, tensor.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape).copy_(tensor)


def _is_large(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.nbytes >= HUGE_PAGE_BYTES and tensor.is_contiguous()


@torch.no_grad()
def norms(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The 2-norms of all that are floating-point, in one pass: NaN and infinity show in them. One tensor a device."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.dtype is torch.float64:
            groups.setdefault((parameter.device, torch.float64), []).append(parameter.detach())
        elif parameter.dtype in (torch.float32, torch.float16, torch.bfloat16):
            # float16 would overflow in its own type
            groups.setdefault((parameter.device, torch.float32), []).append(parameter.detach())
    return [torch.stack(torch._foreach_norm(group, 2, dtype=dtype)) for (_, dtype), group in groups.items()]


def are_finite(loss: Any, parameters: Iterable[Tensor]) -> bool:
    values = norms(parameters)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        values.append(loss.detach())
    return all(bool(torch.isfinite(value).all()) for value in values)
