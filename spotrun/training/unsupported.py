"""Ends a training that cannot be resumed exactly, and reports the reason to the agent and the user."""

from __future__ import annotations

from typing import NoReturn

from spotrun.errors import SpotrunError
from spotrun.trainer_link import Refused
from spotrun.training.framework import Framework
from spotrun.training.session import Agent


class TrainingUnsupported(SpotrunError):
    """Raised if spotrun cannot run this training as it is; the hint says what to change."""


def reject(agent: Agent, reason: str, hint: str) -> NoReturn:
    """
    Report `reason` to the user and to the agent. The agent then starts no further trainer.

    Raises:
        TrainingUnsupported: always.
    """
    agent.tell(Refused(reason=reason, hint=hint))
    agent.end()
    raise TrainingUnsupported(f"spotrun cannot resume this training exactly: {reason}", hint=hint)


def check(framework: Framework, agent: Agent) -> None:
    """
    Reject a training that cannot be resumed exactly.

    Raises:
        TrainingUnsupported: something in this training would make a resumed training differ from an uninterrupted one.
    """
    if problems := framework.problems():
        reject(agent, "; ".join(each.reason for each in problems), "; ".join(each.hint for each in problems))
