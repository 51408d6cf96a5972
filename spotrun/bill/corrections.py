"""
Corrects the recorded ends of instances from the cloud's bill. Pure.

Sometimes no runner sees an instance end, and the cloud does not report when it ended. The ledger then has only
the earliest time by which it must have ended. The bill shows how long the cloud really charged for the instance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import UNSET

from spotrun.bill.charge import Charge, ChargeKind, Statement
from spotrun.bill.reconcile import Line, Reason, Reconciliation
from spotrun.run.billing import metered
from spotrun.run.events import EndCorrected
from spotrun.run.member import Member
from spotrun.run.state import Launch, RunState


@dataclass(frozen=True)
class Correction:
    """
    A correction of the recorded end of an instance, which is `member` of launch `launch`.

    According to the bill, the instance ended at `ended_at`. The ledger has only `was`, the earliest time by which it
    must have ended; `bound` names the fact from which this follows. `usd` is what the correction adds to the run's cost
    (negative if it lowers the cost).
    """

    launch: int
    instance_id: str
    bound: str
    was: datetime
    ended_at: datetime
    usd: Decimal
    member: int = 0


def corrections(state: RunState, found: Reconciliation) -> tuple[Correction, ...]:
    """
    Return the corrections for instances whose end the ledger does not know exactly, and for which the bill shows
    another end.

    An instance is corrected only if the bill is certain to cover its whole life. If its last charged hour is the last
    hour in the file, the next file may charge more hours.
    """
    return tuple(_corrections(state, found))


def corrected(state: RunState, found: Correction, by: str, evidence: str) -> EndCorrected:
    """Return a correction's entry for the ledger. It names a member only if the instance belongs to a gang."""
    member = found.member if state.of_gangs else UNSET
    return EndCorrected(launch=found.launch, ended_at=found.ended_at, by=by, evidence=evidence, member=member)


def _corrections(state: RunState, found: Reconciliation) -> Iterator[Correction]:
    rule = state.created.billing
    for line in found.lines:
        if line.launch is None or all(part.reason is not Reason.UNSEEN_END for part in line.parts):
            continue
        launch = state.launches[line.launch]
        member = launch.members[line.member]
        assert member.gone is not None
        ended_at = _end_by(line, launch)
        if _covers(found.statement, member, ended_at) and ended_at != member.gone.ended_at:
            yield Correction(
                launch=launch.number,
                instance_id=member.gone.instance_id,
                bound=member.gone.bounded_by,
                was=member.gone.ended_at,
                ended_at=ended_at,
                usd=launch.with_end(ended_at, line.member).reserved_usd(rule) - launch.reserved_usd(rule),
                member=line.member,
            )


def _covers(statement: Statement, member: Member, ended_at: datetime) -> bool:
    since, until, began = statement.since, statement.until, member.billed_from
    if since is None or until is None or began is None:
        return False
    return since <= began and ended_at < until


def _end_by(line: Line, launch: Launch) -> datetime:
    """
    Return the end of the instance according to the bill: with this end, the ledger's cost equals the charged amount.
    """
    member, latest = launch.members[line.member], launch.latest_end_of(line.member)
    began = member.billed_from
    assert began is not None
    assert latest is not None
    usage = [charge for charge in line.charges if charge.kind is ChargeKind.USAGE]
    charged = _metered(usage) or _paid_for(usage, member, began, latest)
    return min(began + charged, latest)


def _metered(usage: Sequence[Charge]) -> timedelta | None:
    """Return the time that the cloud metered; None if the bill does not state it."""
    hours = [charge.hours for charge in usage if charge.hours is not None]
    if len(hours) < len(usage):
        return None
    return timedelta(seconds=round(sum(hours, Decimal(0)) * 3600))


def _paid_for(usage: Sequence[Charge], member: Member, began: datetime, latest: datetime) -> timedelta:
    """Return the running time, in whole seconds, that costs the charged amount at the ledger's prices."""
    paid = sum((charge.amount_usd for charge in usage), Decimal(0))
    life_s = range(int((latest - began).total_seconds()))
    seconds = bisect_left(life_s, paid, key=lambda each: metered(member.prices, began, began + timedelta(seconds=each)))
    return timedelta(seconds=seconds)
