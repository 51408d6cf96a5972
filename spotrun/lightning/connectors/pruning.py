"""
Saves and restores copies that ModelPruning keeps but does not save: the initial weights, to which lottery-ticket
pruning resets the model.

Each process makes these copies when the callback is set up. After a resume they would be copies of whatever weights the
script's new model has at that moment.

If the model and the copies are on one device, resetting a parameter makes it share memory with its copy. Later steps
then write to both. This sharing is saved and restored too.
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
    Restore each copy, either in its own memory or, if it shared memory with its weight, as the same memory. Called
    before the weights are restored.
    """
    for callback, copies in zip(callbacks(trainer), saved, strict=True):
        for (weight, copy), before in zip(_pairs(callback), copies, strict=True):
            if before is None:
                copy.data = weight.data
            else:
                copy.copy_(before)


def _pairs(callback: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each weight and its copy. If a weight is pruned, its parameter is named `…_orig`."""
    originals = callback._original_layers or {}
    for module, name in callback._parameters_to_prune if originals else ():
        weight = getattr(module, f"{name}_orig", None)
        copy = getattr(originals[id(module)]["data"], name)
        yield getattr(module, name) if weight is None else weight, copy


def callbacks(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if is_a(callback, "ModelPruning")]
