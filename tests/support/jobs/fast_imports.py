"""
Imported first, it halves the time in which a script of this folder starts; the tests start hundreds.

Half of a trainer's start is imports that these jobs have no use for: torchmetrics wants scipy.signal for the sake of
one window function, Lightning torch._dynamo for the name of one class, and torch has a flag in torch._inductor, a
module for exporting models, and what each operator does to tensors without data. In their place are modules with just
these names. And the collector does not look for garbage among what is imported.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def put(name: str, **names: object) -> None:
    """A module that is there and holds only `names`."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []
    vars(module).update(names)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


def same(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    return function


def nothing() -> None:
    """Of torch.optim, for a compiler."""


gc.disable()
put("torch.export")
put("torch._meta_registrations")
from torch import nn  # noqa: E402


class OptimizedModule(nn.Module):
    """What torch.compile would give."""


put("scipy")
put("scipy.signal", hamming=None)
put("torch._dynamo", OptimizedModule=OptimizedModule, disable=same, graph_break=nothing)
put("torch._inductor")
put("torch._inductor.config")
import pytorch_lightning  # noqa: E402, F401
import torch._prims.rng_prims  # noqa: E402, F401 - without which torch makes no generator

gc.freeze()
gc.enable()
