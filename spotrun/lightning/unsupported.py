"""Checks, before the training starts, whether spotrun can resume a Trainer exactly. If not, lists the reasons."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from spotrun.lightning.connectors import names, position
from spotrun.training.by_name import is_a
from spotrun.training.framework import Problem


def _has_callback(*names: str) -> Callable[[Any], object]:
    """
    Return a function that tests whether a Trainer has a callback of one of the classes `names` or of their subclasses.
    The classes may come from either Lightning package.
    """
    return lambda trainer: any(is_a(callback, *names) for callback in trainer.callbacks)


def _takes_its_batches_itself(trainer: Any) -> bool:
    return any(
        "dataloader_iter" in name for name in inspect.signature(trainer.lightning_module.training_step).parameters
    )


_RULES: tuple[tuple[Callable[[Any], object], Problem], ...] = (
    (
        lambda t: type(t.strategy).__name__ not in ("SingleDeviceStrategy", "DDPStrategy"),
        Problem(
            "the Trainer's strategy spreads the state over processes or devices",
            'Trainer(strategy="ddp"), or Trainer(devices=1)',
        ),
    ),
    (
        position.validates_by_the_clock,
        Problem(
            "validation depends on the clock, so a resumed run would validate after different steps",
            "give val_check_interval in batches or as a share of the epoch",
        ),
    ),
    (
        _has_callback("Timer"),
        Problem("max_time ends training by the clock", "use max_epochs or max_steps; spotrun has max_duration"),
    ),
    (
        _has_callback("BatchSizeFinder", "LearningRateFinder"),
        Problem(
            "a tuner callback runs trainings of its own inside fit()",
            "run the tuner once with plain python, and write its result in its place: `model.lr = …` for "
            "`tuner.lr_find(model)`, `batch_size=…` in the loader for `tuner.scale_batch_size(model)`",
        ),
    ),
    (
        _takes_its_batches_itself,
        Problem("training_step takes dataloader_iter", "take batch and batch_idx"),
    ),
)


def problems(trainer: Any) -> list[Problem]:
    """Return all reasons why a resumed run of this Trainer would not be bit-identical."""
    if moved := names.moved(trainer):
        reason = f"Lightning {names.version(trainer)} lacks names that spotrun uses: {', '.join(moved)}"
        return [Problem(reason, "install pytorch-lightning 2.6.6, or a newer spotrun")]
    return [problem for applies, problem in _RULES if applies(trainer)]
