"""A script and its process, as far as the tests of Python state need one."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, cast

from spotrun.checkpoint.snapshot import read_image
from spotrun.training.framework import Framework
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.state import PythonState
from spotrun.training.ranks import Ranks
from spotrun.training.session import Follower
from spotrun.training.uncarried import UntrackedReporter
from tests.support.checkpoint_images import image_bytes

SCRIPT = """
import collections, dataclasses, enum
import torch
from torch import nn

STEPS = 0
HISTORY = []

class Mode(enum.Enum):
    WARM, COLD = 1, 2

@dataclasses.dataclass
class Meter:
    total: float = 0.0
    seen: list = dataclasses.field(default_factory=list)

class Pair(collections.namedtuple("Pair", "a b")):
    __slots__ = ()

@dataclasses.dataclass(slots=True)
class Slotted:
    total: float = 0.0
    seen: list = dataclasses.field(default_factory=list)

class Half(Slotted):
    pass

class Watched:
    def __del__(self):
        HISTORY.append("a Watched is gone")

class Net(nn.Module):
    best = 0.0
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.dropout = nn.Dropout(0.1)

def remembered(x, cache={}):
    cache[x] = cache.get(x, 0) + 1
"""


class Process:
    """One process of a script, whose module is `net`; `made` is what the script puts into attributes of it."""

    def __init__(self, **made: Any) -> None:
        self.script: Any = ModuleType("a_script")
        self.script.__file__ = "/work/a_script.py"
        sys.modules["a_script"] = self.script
        exec(SCRIPT, vars(self.script))
        self.net: Any = self.script.Net()
        vars(self.net).update(made)
        self.optimizers: list[Any] = []
        self.loggers: list[Any] = []
        self.own_objects: list[Any] = []
        self.module, self.rank = self.net, 0
        self.own_attributes = frozenset({"training"})
        self.callbacks: dict[str, object] = {}
        modules = {"a_script": self.script}
        self.state = PythonState(cast("Framework", self), Script(["/work"], modules))
        self.uncarried = UntrackedReporter(Follower(), Ranks(0, 1), required=False)

    def roots(self) -> dict[str, object]:
        return self.callbacks

    def begun(self, *start_hooks: Any) -> Process:
        self.state.begins()
        self.state.moved()
        for hook in start_hooks:
            hook(self)
        self.state.starts()
        return self

    def image(self) -> Any:
        """As a checkpoint gives it back."""
        state = self.state.dump()
        self.uncarried.say(self.state.news(), step=1)
        return read_image(bytearray(image_bytes({"python": state}, {})))[0]["python"]

    def resumed(self, image: Any) -> Process:
        self.state.load(image, last=True)
        self.uncarried.say(self.state.news(), step=1)
        return self


def carried(change: Any, made: Any = dict, *start_hooks: Any) -> Process:
    """A process that has resumed from one in which `change(process)` ran; `made()` gives both their attributes."""
    first = Process(**made()).begun(*start_hooks)
    change(first)
    image = first.image()
    return Process(**made()).begun(*start_hooks).resumed(image)
