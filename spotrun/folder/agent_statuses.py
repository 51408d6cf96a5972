"""What the agents of a run say about themselves, as far as a runner asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeVar

from spotrun.folder.status_objects import AgentStatus, agent_key, read_status, stored_status
from spotrun.market.world import StepSeen
from spotrun.run.state import RunState
from spotrun.store.port import Store

Figure = TypeVar("Figure", int, float)


class AgentStatuses:
    """Each status object is read at most once between two calls of `forget`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[int, AgentStatus | None] = {}
        self._steps_total: float | None = None
        self._epochs_total: int | None = None

    def forget(self) -> None:
        self._read = {}

    def of(self, launch: int) -> AgentStatus | None:
        if launch not in self._read:
            self._read[launch] = read_status(self._store, agent_key(launch), AgentStatus)
        return self._read[launch]

    def current(self, state: RunState) -> AgentStatus | None:
        """From the agent whose attempt trains."""
        return None if state.current is None else self.of(state.current.launch)

    def ready(self, state: RunState) -> frozenset[int]:
        """The launches whose agent stands by."""
        pending = state.pending_launch
        status = None if pending is None else self.of(pending.number)
        return frozenset({status.launch}) if status is not None and status.phase == "standby" else frozenset()

    def last_step(self, launch: int) -> int | None:
        """None where its agent has begun no attempt."""
        status = self.of(launch)
        return None if status is None or status.attempt is None else status.step

    def heard(self, launches: Iterable[int]) -> dict[int, datetime]:
        """
        When the agents of these launches spoke last; one that never did is absent.

        Raises:
            StoreUnavailable: nobody knows.
        """
        found = ((launch, stored_status(self._store, agent_key(launch), AgentStatus)) for launch in launches)
        return {launch: status.at for launch, status in found if status is not None}

    def step_seen(self, state: RunState) -> StepSeen | None:
        status = self.current(state)
        if status is None or status.attempt is None:
            return None
        return StepSeen(attempt=status.attempt, step=status.step, at=status.at)

    def steps_total(self, state: RunState) -> float | None:
        """By the newest agent that knew it. A status object that is missing later does not make it unknown again."""
        self._steps_total = self._newest(state, lambda status: status.steps_total, self._steps_total)
        return self._steps_total

    def epochs_total(self, state: RunState) -> int | None:
        """By the newest agent that knew it; asked for only where there is a budget to forecast."""
        if state.created.budget_usd is not None:
            self._epochs_total = self._newest(state, lambda status: status.epochs or None, self._epochs_total)
        return self._epochs_total

    def _newest(
        self, state: RunState, figure: Callable[[AgentStatus], Figure | None], known: Figure | None
    ) -> Figure | None:
        """The figure by the newest agent that says it. Once it is known, only the newest agent of all is asked."""
        for attempt in reversed(list(state.attempts.values())):
            status = self.of(attempt.launch)
            if status is not None and (found := figure(status)) is not None:
                return found
            if known is not None:
                break
        return known
