"""Finds weights that an optimizer trains and that no checkpoint would contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from spotrun.training.framework import State
from spotrun.training.tensors import tensors_of

NAMED_MAX = 4
DEPTH_MAX = 4
"""Maximum depth of nested containers that are searched for a weight's name."""


def left_out(module: nn.Module, optimizers: Sequence[Optimizer], state: State) -> list[str]:
    """
    Return the names of the weights that an optimizer trains but no checkpoint would contain, in the optimizers' order.
    `state` is everything that a checkpoint saves, except the optimizers' states.

    The module's own weights are never in the result, because they are always saved (weights.py). Any other weight
    counts as saved if a tensor in `state` uses the same memory: the script may have saved it in its own way.
    """
    there = {id(weight) for weight in module.parameters()}
    memory: set[int] | None = None
    missing = []
    for place, weight in _trained(optimizers):
        if id(weight) in there:
            continue
        if memory is None:
            memory = {_memory(tensor) for tensor in tensors_of(state)}
        if _memory(weight) not in memory:
            missing.append(_name(module, weight) or place)
    return missing


def in_words(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _trained(optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, Tensor]]:
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.requires_grad and weight.numel():
                    yield f"one of shape {tuple(weight.shape)} in optimizer {number}", weight


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _name(module: nn.Module, weight: Tensor) -> str | None:
    """
    Return the path of `weight` in `module`; None if it is not found. The search covers the registered parameters, and
    also the lists and dicts in attributes of the module's parts, which torch does not search.
    """
    parts = list(module.named_modules())
    places = [(name, held) for prefix, part in parts for name, held in _held(vars(part), prefix)]
    found = (name for name, held in [*module.named_parameters(), *places] if held is weight)
    return next(found, None)


def _held(attributes: dict[str, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in attributes.items():
        if not name.startswith("_"):
            yield from _inside(value, f"{prefix}.{name}" if prefix else name, 0)


def _inside(value: Any, place: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, nn.Module):
        yield from ((f"{place}.{name}", weight) for name, weight in value.named_parameters())
    elif depth < DEPTH_MAX and isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _inside(item, f"{place}[{key!r}]", depth + 1)
