"""
Imported first, a script of this folder starts in a quarter of the time; the tests start hundreds.

The rest of a trainer's start is imports that these jobs have no use for: torchmetrics wants scipy.signal for the sake
of one window function and transformers for metrics of texts, Lightning torch._dynamo for the name of one class, and
torch has a flag in torch._inductor, a module for exporting models, what a compiler makes of each operator, and what
each does to tensors without data. In their place are modules with just these names. And the collector does not look
for garbage among what is imported.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def put(name: str, path: Sequence[str] = (), **names: object) -> None:
    """A module that is there and holds only `names`, and what is imported from the folders of `path` below it."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = list(path)
    vars(module).update(names)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


def same(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    return function


def nothing() -> None:
    """Of torch.optim and torch.distributed, for a compiler."""


gc.disable()
put("torch.export")
put("torch._meta_registrations")
import torch  # noqa: E402
from torch import nn  # noqa: E402


class OptimizedModule(nn.Module):
    """What torch.compile would give."""


put("transformers", AutoModel=None, AutoTokenizer=None, CLIPModel=None, CLIPProcessor=None)
put("scipy")
put("scipy.signal", hamming=None)
put("torch._dynamo", OptimizedModule=OptimizedModule, disable=same, graph_break=nothing)
put("torch._dynamo.trace_rules", clear_lru_cache=nothing)
put("torch._dynamo.utils", get_optimize_ddp_mode=nothing)
put("torch._inductor")
put("torch._inductor.config")
put("torch._prims", [f"{folder}/_prims" for folder in torch.__path__])
import pytorch_lightning  # noqa: E402, F401
import torch._prims.rng_prims  # noqa: E402 - without which torch makes no generator

gc.freeze()
gc.enable()
