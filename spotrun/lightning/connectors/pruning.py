"""
Saves and restores the state that ModelPruning does not save: copies of the first weights, to which lottery-ticket
pruning resets the model.

Each process makes the copies when it sets up, so after a resume they would be copies of the script's new model.

If model and copies are on one device, a parameter that Lightning has reset shares the memory of its copy, so further
steps write to both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spotrun.training.by_name import is_a

State = dict[str, Any]


def dump(trainer: Any) -> list[list[Tensor | None]]:
    """Return the copies of each callback, with None for a copy that shares the memory of its weight."""
    return [
        [None if copy.data_ptr() == weight.data_ptr() else copy.detach() for weight, copy in _pairs(callback)]
        for callback in callbacks(trainer)
    ]


@torch.no_grad()
def load(trainer: Any, saved: list[list[Tensor | None]]) -> None:
    """Restore the copies before the weights, each in its own memory or in the memory of its weight."""
    for callback, copies in zip(callbacks(trainer), saved, strict=True):
        for (weight, copy), before in zip(_pairs(callback), copies, strict=True):
            if before is None:
                copy.data = weight.data
            else:
                copy.copy_(before)


def _pairs(callback: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each weight with its copy. A pruned weight has its values in `…_orig`."""
    originals = callback._original_layers or {}
    for module, name in callback._parameters_to_prune if originals else ():
        weight = getattr(module, f"{name}_orig", None)
        copy = getattr(originals[id(module)]["data"], name)
        yield getattr(module, name) if weight is None else weight, copy


def callbacks(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if is_a(callback, "ModelPruning")]
