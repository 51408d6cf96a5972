"""
tiny.py, started in half the time, for those who start it a hundred times.

Half of a trainer's start is imports that this job has no use for: torchmetrics wants scipy.signal for the sake of one
window function, Lightning torch._dynamo for the name of one class, and torch has a flag in torch._inductor. In their
place are modules with just these names.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn


def put(name: str, **names: object) -> None:
    """A module that is there and holds only `names`."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []
    vars(module).update(names)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


class OptimizedModule(nn.Module):
    """What torch.compile would give."""


def same(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    return function


def nothing() -> None:
    """Of torch.optim, for a compiler."""


put("scipy")
put("scipy.signal", hamming=None)
put("torch._dynamo", OptimizedModule=OptimizedModule, disable=same, graph_break=nothing)
put("torch._inductor")
put("torch._inductor.config")
runpy.run_path(str(Path(__file__).with_name("tiny.py")), run_name="__main__")
