"""Runs one call of `Trainer.train()` under an agent."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from spotrun.training import unsupported
from spotrun.training.fit import Fit, claim
from spotrun.training.session import Follower
from spotrun.training.taps import Taps
from spotrun.transformers import trace
from spotrun.transformers.adapter import TransformersFramework

RESUME = "resume_from_checkpoint"
HELD = "held by spotrun"
"""
The name of a folder that does not exist. spotrun passes it to the Trainer as the checkpoint to resume from. The Trainer
then starts as it does for a resume, but loads nothing, and spotrun restores the state.
"""


def train(module: ModuleType, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Run `original(trainer, …)` from the position that the run has reached. `module` is transformers.trainer."""
    framework = TransformersFramework(trainer, module)
    agent = claim() if framework.rank == 0 else Follower()
    if agent is None:
        return original(trainer, *args, **kwargs)
    unsupported.check(framework, agent)
    called = inspect.signature(original).bind(trainer, *args, **kwargs)
    asked = called.arguments.pop(RESUME, None)
    taps = Taps()
    taps.around(trainer, "_inner_training_loop", Training(framework, module, trainer, asked))
    try:
        return original(*called.args, **called.kwargs)
    finally:
        taps.close()


class Training:
    """
    Runs the Trainer's training loop inside a `Fit`. `asked` is the checkpoint that the script passed to train() as
    `resume_from_checkpoint`.
    """

    def __init__(self, framework: TransformersFramework, module: ModuleType, trainer: Any, asked: Any) -> None:
        self._framework = framework
        self._module = module
        self._trainer = trainer
        self._asked = asked

    def __call__(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        fit = Fit.begin(self._framework)
        assert fit is not None
        watch = trace.begin(self._framework, self._trainer)
        try:
            fit.built()
            begins = HELD if self._framework.is_resumed else self._own_checkpoint()
            output = original(*args, **{**kwargs, RESUME: begins})
            self._framework.output = output
            fit.finish()
        except BaseException:
            fit.fail()
            raise
        finally:
            if watch is not None:
                watch.close()
            fit.close()
        if watch is not None:
            watch.ended()
        return output

    def _own_checkpoint(self) -> str | None:
        """
        Load the checkpoint that the script names, in the same way as the Trainer would. Return its folder, or None if
        the script names no checkpoint. Call this only on a fresh start.
        """
        if not self._asked:
            return None
        folder = self._trainer.args.output_dir
        found = self._module.get_last_checkpoint(folder) if self._asked is True else self._asked
        if found is None:
            raise ValueError(f"No valid checkpoint found in output directory ({folder})")
        self._trainer._load_from_checkpoint(found)
        return str(found)
