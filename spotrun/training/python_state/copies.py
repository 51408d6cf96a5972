"""
Saves and restores modules that are copies of a part of the trained module, such as averages and teachers. This is
needed only for copies that the script makes during a batch. All others are made again when the script starts.

A checkpoint cannot describe how to build a module. So a resume finds the part of the trained module that has the same
structure, copies it, and gives the copy the saved weights, flags and plain attributes.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from spotrun.training.module_state import is_metric
from spotrun.training.python_state.arrays import is_storable
from spotrun.training.python_state.values import decode, encode, is_scalar
from spotrun.training.weights import build_of

OwnParts: TypeAlias = Callable[[nn.Module], Mapping[str, Any]]
"""
A function that returns a module's attributes without those that torch adds. Two modules are compared by these
attributes.
"""


class Copies:
    """
    Finds the part of a model of which a module is a copy. The part's name is cached, because finding it in a large
    model takes long.
    """

    def __init__(self) -> None:
        self._like: dict[int, tuple[weakref.ref[nn.Module], str | None]] = {}

    def part_like(self, made: nn.Module, module: nn.Module, own_parts: OwnParts) -> str | None:
        """Return the name of the part of `module` of which `made` is a copy; None if it is not a copy."""
        found = self._like.get(id(made))
        if found is None or found[0]() is not made:
            found = self._like[id(made)] = (weakref.ref(made), _part_like(made, module, own_parts))
        return found[1]


def _part_like(made: nn.Module, module: nn.Module, own_parts: OwnParts) -> str | None:
    build = build_of(made)
    if not all(map(is_storable, _tensors(made).values())) or any(is_metric(type(part)) for part in made.modules()):
        return None
    parts = ((name, part) for name, part in module.named_modules() if name and type(part) is type(made))
    return next((name for name, part in parts if build_of(part) == build and _alike(made, part, own_parts)), None)


def _alike(made: nn.Module, part: nn.Module, own_parts: OwnParts) -> bool:
    """
    Return True if `made` could be a copy of `part`: their tensors have the same names and shapes, and each other
    attribute is a scalar, or the same object in both modules.
    """
    if {n: t.shape for n, t in _tensors(made).items()} != {n: t.shape for n, t in _tensors(part).items()}:
        return False
    for one, other in zip(made.modules(), part.modules(), strict=True):
        attributes, others = own_parts(one), own_parts(other)
        if not all(is_scalar(value) or others.get(name) is value for name, value in attributes.items()):
            return False
    return True


def content_of(made: nn.Module, like: str, own_parts: OwnParts) -> dict[str, Any]:
    """
    Return the tensors, flags and plain attributes of `made`. From these, `made_like` can later make the same module
    again, starting with a copy of the part named `like`. Tensors are not copied.
    """
    return {
        "like": like,
        "tensors": {name: tensor.detach() for name, tensor in _tensors(made).items()},
        "frozen": [name for name, parameter in made.named_parameters() if not parameter.requires_grad],
        "plain": [
            {name: encode(value) for name, value in own_parts(part).items() if is_scalar(value)}
            for part in made.modules()
        ],
    }


def made_like(part: nn.Module, content: Mapping[str, Any]) -> nn.Module:
    """
    Return a copy of `part` with the saved `content`, which `content_of` returned.

    Raises:
        KeyError, ValueError, RuntimeError: the structure of `part` has changed, so that `content` does not fit it.
    """
    made = copy.deepcopy(part)
    with torch.no_grad():
        for name, tensor in _tensors(made).items():
            tensor.copy_(content["tensors"][name])
    frozen = set(content["frozen"])
    for name, parameter in made.named_parameters():
        parameter.grad = None
        parameter.requires_grad_(name not in frozen)
    for each, plain in zip(made.modules(), content["plain"], strict=True):
        vars(each).update({name: decode(value) for name, value in plain.items()})
    return made


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
