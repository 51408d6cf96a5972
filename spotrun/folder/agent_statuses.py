"""Reads the status objects of a run's agents. Used by runners."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeVar

from msgspec.structs import astuple

from spotrun.folder.status_objects import AgentStatus, agent_key, read_status, stored_status
from spotrun.market.world import StepSeen
from spotrun.run.gang import MemberName
from spotrun.run.state import RunState
from spotrun.store.port import Store

Figure = TypeVar("Figure", int, float)


class AgentStatuses:
    """
    The status objects of a run's agents. Each object is read from the store at most once, until `forget` is called.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[MemberName, AgentStatus | None] = {}
        self._steps_total: float | None = None
        self._epochs_total: int | None = None

    def forget(self) -> None:
        self._read = {}

    def of(self, name: MemberName) -> AgentStatus | None:
        if name not in self._read:
            self._read[name] = read_status(self._store, agent_key(*astuple(name)), AgentStatus)
        return self._read[name]

    def current(self, state: RunState) -> AgentStatus | None:
        """
        Return the status of the agent of the current attempt; in a gang, that of the lead's agent. Return None if there
        is no current attempt or no status.
        """
        return None if state.current is None else self.of(state.current.names[0])

    def all_current(self, state: RunState) -> list[AgentStatus | None]:
        """Return the statuses of all agents of the current attempt."""
        return [] if state.current is None else [self.of(name) for name in state.current.names]

    def ready(self, state: RunState) -> frozenset[int]:
        """
        Return the launches whose agents wait as standbys and are ready to take over: the pending launch, or none.
        """
        pending = state.pending_launch
        status = None if pending is None else self.of(MemberName(pending.number, 0))
        return frozenset({status.launch}) if status is not None and status.phase == "standby" else frozenset()

    def last_step(self, state: RunState, lost: MemberName) -> int | None:
        """
        Return the last step that the training had completed when the instance `lost` was lost, according to the status
        of its agent. If the instance belonged to the current attempt, use the statuses of all the attempt's agents.
        Return None if none of these agents had taken over.
        """
        current = state.current
        names = (lost,) if current is None or lost not in current.names else current.names
        found = [status for status in map(self.of, names) if status is not None and status.attempt is not None]
        newest = max((status.attempt for status in found if status.attempt is not None), default=None)
        return max((status.step for status in found if status.attempt == newest), default=None)

    def heard(self, names: Iterable[MemberName]) -> dict[MemberName, datetime]:
        """
        Return the time at which each member's agent last wrote its status. Leave out members without a status.

        Raises:
            StoreUnavailable: the times are unknown.
        """
        found = ((name, stored_status(self._store, agent_key(*astuple(name)), AgentStatus)) for name in names)
        return {name: status.at for name, status in found if status is not None}

    def step_seen(self, state: RunState) -> StepSeen | None:
        status = self.current(state)
        if status is None or status.attempt is None:
            return None
        return StepSeen(attempt=status.attempt, step=status.step, at=status.at)

    def steps_total(self, state: RunState) -> float | None:
        """
        Return the total number of steps of the training, as reported by the newest agent that knows it. The number is
        cached, because that agent's status object may be missing later.
        """
        self._steps_total = self._newest(state, lambda status: status.steps_total, self._steps_total)
        return self._steps_total

    def epochs_total(self, state: RunState) -> int | None:
        """
        Return the total number of epochs, as reported by the newest agent that knows it. Return None for a run without
        a budget, because the number is needed only to forecast whether a budget suffices.
        """
        if state.created.budget_usd is not None:
            self._epochs_total = self._newest(state, lambda status: status.epochs or None, self._epochs_total)
        return self._epochs_total

    def _newest(
        self, state: RunState, figure: Callable[[AgentStatus], Figure | None], known: Figure | None
    ) -> Figure | None:
        """
        Return a figure from the newest status that contains it. `figure` extracts the figure from a status. `known` is
        the figure that an earlier call found, or None. If it is not None, read only the newest agent's status, and
        return `known` if that status does not contain the figure.
        """
        for attempt in reversed(list(state.attempts.values())):
            status = self.of(attempt.names[0])
            if status is not None and (found := figure(status)) is not None:
                return found
            if known is not None:
                break
        return known
