"""
Saves and restores ModelPruning's copies of the initial weights, which ModelPruning itself does not save. Lottery-ticket
pruning resets the model to these weights.

Each process makes the copies when the callback is set up. So after a resume, they would hold the weights with which the
new process happened to create its model, instead of the initial weights of the training.

If the model and the copies are on the same device, a parameter that is reset shares memory with its copy from then on,
so later steps change both. This module also saves which parameters share memory with their copies, and makes the same
parameters share memory after a resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spotrun.training.by_name import is_a

State = dict[str, Any]


def dump(trainer: Any) -> list[list[Tensor | None]]:
    """Return the copies of each callback. None stands for a copy that shares memory with its weight."""
    return [
        [None if copy.data_ptr() == weight.data_ptr() else copy.detach() for weight, copy in _pairs(callback)]
        for callback in callbacks(trainer)
    ]


@torch.no_grad()
def load(trainer: Any, saved: list[list[Tensor | None]]) -> None:
    """
    Restore each copy. If the saved copy shared memory with its weight, make the new copy share memory with the new
    weight. Otherwise write the saved values into the new copy's own memory. Called before the weights are restored.
    """
    for callback, copies in zip(callbacks(trainer), saved, strict=True):
        for (weight, copy), before in zip(_pairs(callback), copies, strict=True):
            if before is None:
                copy.data = weight.data
            else:
                copy.copy_(before)


def _pairs(callback: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each weight and its copy. The parameter of a pruned weight has a name that ends in `_orig`."""
    originals = callback._original_layers or {}
    for module, name in callback._parameters_to_prune if originals else ():
        weight = getattr(module, f"{name}_orig", None)
        copy = getattr(originals[id(module)]["data"], name)
        yield getattr(module, name) if weight is None else weight, copy


def callbacks(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if is_a(callback, "ModelPruning")]
