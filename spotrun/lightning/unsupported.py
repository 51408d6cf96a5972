"""What cannot be resumed exactly, said before the run starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from spotrun.errors import SpotrunError
from spotrun.lightning.connectors import names, position
from spotrun.trainer_link import Refused
from spotrun.training.session import Agent


class TrainingRefused(SpotrunError):
    """This training cannot run under spotrun as it is; the hint says what to change."""


def refuse(agent: Agent, reason: str, hint: str) -> NoReturn:
    """
    Tell the agent, which will not try again, and the user.

    Raises:
        TrainingRefused: always.
    """
    agent.tell(Refused(reason=reason, hint=hint))
    agent.end()
    raise TrainingRefused(f"spotrun cannot resume this training exactly: {reason}", hint=hint)


Rule = tuple[Callable[[Any], object], str, str]


def _has_callback(*names: str) -> Callable[[Any], object]:
    """Any callback of these names, by class name so that both Lightning packages are meant."""
    return lambda trainer: any(cls.__name__ in names for cb in trainer.callbacks for cls in type(cb).__mro__)


_RULES: tuple[Rule, ...] = (
    (
        lambda t: t.num_nodes > 1,
        "the Trainer uses more than one machine",
        "Trainer(num_nodes=1)",
    ),
    (
        lambda t: type(t.strategy).__name__ not in ("SingleDeviceStrategy", "DDPStrategy"),
        "the Trainer's strategy spreads the state over processes or devices",
        'Trainer(strategy="ddp"), or Trainer(devices=1)',
    ),
    (
        position.validates_by_the_clock,
        "validation is due by the clock, which no other run repeats",
        "give val_check_interval in batches or as a share of the epoch",
    ),
    (
        _has_callback("Timer"),
        "max_time ends training by the clock",
        "use max_epochs or max_steps; spotrun has max_duration",
    ),
    (
        _has_callback("BatchSizeFinder", "LearningRateFinder"),
        "a tuner callback runs trainings of its own inside fit()",
        "run the tuner once, and put its result into the script",
    ),
)


def check_trainer(trainer: Any, agent: Agent) -> None:
    """
    Raises:
        TrainingRefused: for everything about this Trainer that keeps a resumed run from being bit-identical.
    """
    if moved := names.moved(trainer):
        refuse(
            agent,
            f"Lightning {names.version(trainer)} has moved {', '.join(moved)}",
            "install pytorch-lightning 2.6.6, or a newer spotrun",
        )
    if problems := [(reason, hint) for applies, reason, hint in _RULES if applies(trainer)]:
        refuse(agent, "; ".join(reason for reason, _ in problems), "; ".join(hint for _, hint in problems))


def check_step(module: Any, agent: Agent) -> None:
    """
    Raises:
        TrainingRefused: the step takes its batches itself.
    """
    if any("dataloader_iter" in name for name in inspect.signature(module.training_step).parameters):
        refuse(agent, "training_step takes dataloader_iter", "take batch and batch_idx")
