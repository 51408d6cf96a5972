"""
Computes digests of a base model that is trained through adapters. The base consists of the weights that the script
loads in each process and that training does not change. They make up most of the model. So a checkpoint stores only a
digest of each of these weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spotrun.training.by_name import is_a
from spotrun.training.python_state.arrays import memory_of

DIGEST_BYTES = 16


class BaseModel:
    """
    The base of a PEFT model: the weights that do not require gradients when training begins. Any other model has no
    base.
    """

    def __init__(self, model: nn.Module) -> None:
        frozen = {name: weight for name, weight in model.named_parameters() if not weight.requires_grad}
        self._model = model
        self._frozen = frozen if is_a(model, "PeftModel") else {}
        self._versions = {name: weight._version for name, weight in self._frozen.items()}
        self._digests = {name: digest(weight) for name, weight in self._frozen.items()}

    def digests(self) -> Mapping[str, str]:
        """
        Return the digests of the base weights, keyed by the weights' names. A weight is left out if it now requires
        gradients, or if anything has written to it.
        """
        if not self._frozen:
            return {}
        now = dict(self._model.named_parameters())
        return {name: found for name, found in self._digests.items() if self._is_untouched(name, now.get(name))}

    def _is_untouched(self, name: str, weight: Any) -> bool:
        same = weight is self._frozen[name] and weight._version == self._versions[name]
        return same and not weight.requires_grad


@torch.no_grad()
def digest(weight: Tensor) -> str:
    """Return a digest of the weight's bits, type and shape."""
    data = weight.detach().cpu().contiguous()
    found = hashlib.blake2b(f"{weight.dtype} {tuple(weight.shape)} ".encode(), digest_size=DIGEST_BYTES)
    found.update(memory_of(data).data)
    return found.hexdigest()
