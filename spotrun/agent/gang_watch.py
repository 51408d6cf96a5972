"""
Lets the lead of a gang watch the other members, while the lead's trainer runs and after it has ended.

If one rank leaves a collective call, the call waits forever on all other ranks, or fails there. So when one trainer
ends, the agents end the trainers of all members. The run's report then names the error of the trainer that ended first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.gang.connectivity import Connectivity, doors_of_others
from spotrun.agent.gang.gang_decisions import (
    ENDS_WITHIN_MIN_S,
    ENDS_WITHIN_S,
    EndedTrainer,
    are_settled,
    cut_off_members,
    ended_trainers,
    has_the_reason,
    missing_at_start,
    silent_members,
)
from spotrun.agent.gang.rendezvous import Rendezvous
from spotrun.agent.gang.worker_statuses import WorkerStatuses
from spotrun.agent.inbox import Exited
from spotrun.agent.processes.trainer import Trainer
from spotrun.run.gang import MemberName
from spotrun.run.reasons import lost_a_peer

STANDS_STILL_S = 15.0
"""
Seconds of run time without a step of the lead's trainer, after which a member that cannot be reached counts as missing
(protocol 44). If five steps take longer, the time of five steps applies instead.
"""
STANDS_STILL_STEPS = 5


class Missing(NamedTuple):
    """The members without which an attempt cannot continue, and the reason."""

    names: tuple[MemberName, ...]
    why: str


class GangWatch:
    def __init__(self, context: AgentContext, place: Rendezvous) -> None:
        self._clock = context.clock
        self._attempt = place.attempt
        self._name = context.assignment.name
        self._others = WorkerStatuses(context.store, context.clock, place.others)
        state = context.recorder.state
        self._reach = Connectivity(context.clock, doors_of_others(state, state.attempts[place.attempt], self._name))
        self._began_s = self._clock.monotonic()
        self._exited_s: float | None = None
        self._ended_for: EndedTrainer | None = None

    def start(self) -> None:
        self._others.start()
        self._reach.start()

    def close(self) -> None:
        self._others.close()
        self._reach.close()

    def begins(self) -> None:
        """Watch the other members again, because the lead's next trainer has started."""
        self._began_s, self._exited_s, self._ended_for = self._clock.monotonic(), None, None
        self._others.begins()
        self._reach.begins()

    def missing(self, trainer: Trainer, step_s: float | None) -> Missing | None:
        """
        Return the missing members, without which the attempt cannot continue; None if no member is missing. A member is
        missing if it has not started its trainer in time, or if it cannot be reached while this trainer makes no
        progress.
        """
        now_s = self._clock.monotonic()
        late = missing_at_start(self._others.seen, self._attempt, trainer.number, now_s - self._began_s, self._scale)
        limit_s = max(STANDS_STILL_S, STANDS_STILL_STEPS * (step_s or 0.0))
        if late:
            return Missing(late, "did not begin in time")
        if trainer.exited is None and trainer.silent_s < limit_s:
            return None
        if silent := silent_members(self._others.seen, now_s, self._scale):
            return Missing(silent, "not reached")
        if cut_off := self._cut_off():
            return Missing(
                cut_off,
                "cannot be reached on the network, although it can reach the store: is there a firewall in between?",
            )
        return None

    def ended_elsewhere(self, trainer: Trainer) -> EndedTrainer | None:
        """
        Find the trainers that failed on other members, and return the one that failed first. Return None if there is
        none, or if it failed less than ENDS_WITHIN_S ago. A trainer that completed its work has not failed.

        Normally, the lead's trainer notices the failure and ends within ENDS_WITHIN_S. If the lead's trainer still runs
        after this time, the caller has to end it.
        """
        ended = self._failed(trainer)
        if not ended:
            return None
        waited_s = (self._clock.now() - ended[0].at).total_seconds()
        if waited_s >= max(ENDS_WITHIN_S, ENDS_WITHIN_MIN_S * self._scale):
            self._ended_for = ended[0]
        return self._ended_for

    def knows_why(self, trainer: Trainer, reason: str) -> bool:
        """
        Return True if enough is known about the other members to judge which trainer made all trainers end: the lead's,
        whose error is `reason`, or another member's.
        """
        now_s = self._clock.monotonic()
        if self._exited_s is None:
            self._exited_s = now_s
            self._others.look_closely()
        ended = len(self._ended(trainer))
        reasons = [one.reason for one in self._failed(trainer)] + ([reason] if self._ended_for is None else [])
        lost = all(map(lost_a_peer, reasons))
        known = are_settled(self._others.seen, ended, self._exited_s, now_s, self._scale, lost=lost)
        return known or bool(self._cut_off())

    def reason_of_other(self, exited: Exited, trainer: Trainer, reason: str) -> EndedTrainer | None:
        """
        Return the trainer of another member whose error made all trainers end; None if the error was in this member's
        trainer.
        """
        failed = self._failed(trainer)
        if self._ended_for is not None:
            return has_the_reason(failed)
        own = EndedTrainer(self._name, exited.exit_code, exited.at, reason)
        first = has_the_reason([own, *failed])
        return None if first is own else first

    def _cut_off(self) -> tuple[MemberName, ...]:
        told = {name: seen.status.unreached if seen.status else () for name, seen in self._others.seen.items()}
        return cut_off_members(told | {self._name: self._reach.unreached}, self._name)

    def _failed(self, trainer: Trainer) -> list[EndedTrainer]:
        return [one for one in self._ended(trainer) if one.exit_code]

    def _ended(self, trainer: Trainer) -> Sequence[EndedTrainer]:
        return ended_trainers(self._others.seen, self._attempt, trainer.number)

    @property
    def _scale(self) -> float:
        return self._clock.scale
