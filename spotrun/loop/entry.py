"""
Warns if a script trains with Fabric or accelerate but without a `Loop`. The warning appears at the first step, and
names the state that an interruption would lose.

When a program under an agent imports Fabric or accelerate, spotrun's import hook (autoload) calls the function
`watch_...` of this module for that library.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import distributed
from torch.optim.optimizer import register_optimizer_step_post_hook

from spotrun.trainer_link import LinkLost, NotCarried
from spotrun.training import session

ALL = "the weights, the optimizers and the place in the data"
WATCHED = "is_watched_by_spotrun"


def watch_fabric(module: ModuleType) -> None:
    _watch(module.Fabric, "setup", "Fabric")


def watch_accelerate(module: ModuleType) -> None:
    _watch(module.Accelerator, "prepare", "accelerate")


def _watch(cls: Any, method: str, name: str) -> None:
    """
    Wrap `method` of `cls`, which scripts call to prepare their training. If a script calls it but has no Loop, a
    warning appears at the first step. Calling `_watch` again has no effect.
    """
    original = getattr(cls, method)
    if hasattr(original, WATCHED):
        return

    @functools.wraps(original)
    def prepare(self: Any, *args: Any, **options: Any) -> Any:
        _at_first_step(functools.partial(say, name))
        return original(self, *args, **options)

    setattr(prepare, WATCHED, True)
    setattr(cls, method, prepare)


@functools.cache
def _waits() -> list[Any]:
    return []


def _at_first_step(act: Callable[[], None]) -> None:
    """
    Call `act` once, at the first step of any optimizer. A script that uses a Loop has entered it by then.
    """
    if _waits():
        return

    def stepped(*_: Any) -> None:
        handle.remove()
        act()

    handle: torch.utils.hooks.RemovableHandle = register_optimizer_step_post_hook(stepped)
    _waits().append(handle)


def say(name: str) -> None:
    """
    Warn that the training is not saved, unless a fit has begun under the agent. `name` is the library with which the
    script trains. The warning is printed, and the agent passes it on to `spotrun status`.
    """
    if distributed.is_available() and distributed.is_initialized() and distributed.get_rank():
        return
    try:
        agent = session.claim()
    except LinkLost:
        return  # the agent itself reports that this trainer has disconnected
    if agent is None or agent.has_begun:
        return
    print(
        f"spotrun: this script trains with {name} and has no Loop: an interruption loses {ALL}; "
        "use spotrun's Loop (docs/loops.md), or save into $SPOTRUN_STATE_DIR",
        file=sys.stderr,
        flush=True,
    )
    agent.tell(NotCarried(step=0, places=((ALL, f"a training by {name} without a Loop: docs/loops.md"),)))
