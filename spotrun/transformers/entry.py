"""
Replaces `Trainer.train` with a function that runs it in a `Fit`, so that trainings can resume. Subclasses of Trainer
are covered too, because their `train` calls that of Trainer.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

AGENT = "SPOTRUN_AGENT"


def install(module: ModuleType) -> None:
    """
    Make `train()` of each Trainer begin at the position that the agent gives. `module` is transformers.trainer, which
    has just been imported. Without an agent, do nothing. Idempotent.
    """
    if AGENT not in os.environ or hasattr(module.Trainer.train, "asks_its_agent"):
        return
    _watch_training(module)
    _begin_where_the_loader_does(module)


def _watch_training(module: ModuleType) -> None:
    original = module.Trainer.train

    @functools.wraps(original)
    def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        from spotrun.transformers import fit

        return fit.train(module, original, trainer, *args, **kwargs)

    train.asks_its_agent = True  # type: ignore[attr-defined]
    module.Trainer.train = train


def _begin_where_the_loader_does(module: ModuleType) -> None:
    """
    Keep the Trainer from skipping batches of an exact loader, because such a loader begins at the right batch. With any
    other loader, the Trainer still reads and drops the batches before the position of the resume.
    """
    original = module.skip_first_batches

    @functools.wraps(original)
    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        from spotrun.transformers.loaders import begins_anywhere

        return dataloader if begins_anywhere(dataloader) else original(dataloader, num_batches)

    module.skip_first_batches = skip_first_batches  # type: ignore[attr-defined]
