"""Describes what each member of a gang is doing now. All functions are pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from spotrun.folder.status_objects import AgentStatus
from spotrun.report.why import offering_text
from spotrun.run.gang import MemberName
from spotrun.run.state import Attempt, RunState

StatusOf = Callable[[MemberName], AgentStatus | None]


class MemberNow(NamedTuple):
    """
    A member of a gang, as it is now.

    `does` describes what the member is doing. `rank` is the rank of the member's first process in the running
    attempt; None if the member does not take part in that attempt. `where` is the member's offering. `instance_id` is
    empty until the cloud has assigned an id.
    """

    name: MemberName
    rank: int | None
    does: str
    where: str
    instance_id: str

    def to_dict(self) -> dict[str, object]:
        return {**self._asdict(), "name": str(self.name)}


def members_now(state: RunState, status_of: StatusOf) -> Iterator[MemberNow]:
    """
    Yield the members of a gang that might still be billed. The ledger shows which members these are. The status object
    of each member's agent shows what the member is doing.
    """
    if not state.of_gangs:
        return
    for name in state.names():
        launch, member = state.launches[name.launch], state.member(name)
        if member.gone is not None or (launch.closed is not None and member.recorded is None):
            continue
        yield MemberNow(
            name=name,
            rank=_rank(state.current, name),
            does=_does(state, name, status_of),
            where=offering_text(launch.intent.offering),
            instance_id="" if member.recorded is None else member.recorded.instance_id,
        )


def _rank(current: Attempt | None, name: MemberName) -> int | None:
    seats = () if current is None or current.gang is None else current.gang.members
    return next((seat.rank for seat in seats if seat.name == name), None)


def _does(state: RunState, name: MemberName, status_of: StatusOf) -> str:
    member, current = state.member(name), state.current
    if current is not None and name in current.names:
        return _does_in(current, name, status_of(name))
    if not state.is_wanted(name) or state.has_to_leave(name):
        return "is being ended"
    if member.ready is not None:
        return "is ready, and waits for others"
    return "starts" if member.recorded is not None else "is asked for"


def _does_in(attempt: Attempt, name: MemberName, status: AgentStatus | None) -> str:
    if attempt.notice is not None and attempt.notice.member == name:
        at = attempt.notice.deadline_at
        return "is taken by the cloud" if at is None else f"is taken by the cloud at {at:%H:%M:%S}"
    told = None if status is None else status.trainer
    newest = len(attempt.trainers) - 1
    if told is not None and (told.attempt, told.incarnation) == (attempt.number, newest) and told.exit_code is not None:
        return f"has ended its process (exit code {told.exit_code}), and waits for the lead's decision"
    trains = bool(attempt.trainers) and attempt.trainers[-1].started_at is not None
    return "trains" if trains else "begins to train"
