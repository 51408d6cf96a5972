"""The input of a decision: the run's state, its specification, the newest observation of the cloud, and the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar

from spotrun.market.world import World
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from spotrun.strategies.catalogue import STRATEGIES
from spotrun.strategies.port import Strategy

T = TypeVar("T")


class Facts:
    """
    The facts on which a decision is based: the run, its specification, the newest observation of the cloud (`world`),
    and the time. Every function that takes part in a decision receives them.

    `strategies` are the strategies that a job is allowed to name.
    """

    def __init__(
        self,
        state: RunState,
        spec: RunSpec,
        world: World,
        now: datetime,
        strategies: Mapping[str, Strategy] = STRATEGIES,
    ) -> None:
        self.state, self.spec, self.world, self.now, self.strategies = state, spec, world, now, strategies
        self.answers: dict[object, Any] = {}

    @classmethod
    def at_birth(cls, newborn: RunState, spec: RunSpec, world: World) -> Facts:
        """Return the facts of a run's first decision."""
        return cls(newborn, spec, world, newborn.created_at)

    def at(self, now: datetime) -> Facts:
        return Facts(self.state, self.spec, self.world, now, self.strategies)

    @property
    def size(self) -> int:
        """The number of instances that train together."""
        return self.state.created.size if self.state.of_gangs else 1

    @property
    def now_s(self) -> float:
        """The time as strategies measure it: in seconds since the run's creation."""
        return (self.now - self.state.created_at).total_seconds()


def once(question: Callable[[Facts], T]) -> Callable[[Facts], T]:
    """
    Return a function that calls `question` only once for the same facts, and returns the stored result in later calls.

    This saves a lot of time: for example, a run's pace is measured from all its commits, and a run of several weeks has
    thousands.
    """

    @wraps(question)
    def answer(facts: Facts) -> T:
        if question not in facts.answers:
            facts.answers[question] = question(facts)
        found: T = facts.answers[question]
        return found

    return answer
