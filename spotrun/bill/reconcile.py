"""
Compares the ledger ("ours") with the cloud's statement ("theirs"), instance by instance. The sums are exact:

    ours + the explained parts + the unexplained rest = theirs

For each instance, `reconcile` recomputes the ledger's cost by the cloud's published rules for minimum charges and
refunds, for the hours that the bill covers. It compares this cost with the bill's lines for running the instance. Taxes
and credits in the bill count as explained parts.

Disks and addresses are compared in one line for the whole run, because a bill does not show to which instance they
belong. The ledger counts them at list prices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from msgspec.structs import replace

from spotrun.bill.charge import Charge, ChargeKind, LineFilter, Statement, with_corrections
from spotrun.instance import EndedBy
from spotrun.offering import CapacityType
from spotrun.run.billing import (
    ZERO,
    Meter,
    exact_seconds,
    hourly,
    machine_alone,
    metered,
    switched_off_at,
    without_address,
)
from spotrun.run.events import BillingRule
from spotrun.run.gang import MemberName
from spotrun.run.member import Member
from spotrun.run.state import RunState
from spotrun.units import plain_usd

EDGES = timedelta(seconds=2)
"""
If the ledger's and the bill's running times of an instance differ by at most this much, the difference counts as
rounding: a cloud may round the first and the last second.
"""
DISKS_MOST = 3
"""
Maximum ratio of the charged to the recorded cost of disks. Up to this ratio, the difference counts as explained,
because the cloud may have charged by another price list or for another kind of disk.
"""
_SECONDS_PER_HOUR = 3600


class Reason(StrEnum):
    """A reason why the cloud charged more or less than the ledger counts."""

    MINIMUM = "minimum"
    """The cloud bills a minimum time."""
    REFUND = "interruption refund"
    """Spot capacity that the cloud takes back early is free. On EC2, early means within the first hour."""
    NOT_COVERED = "hours not in the file"
    NOT_IN_FILE = "not in this kind of file"
    STARTING = "not billed while starting"
    """The ledger counts from the launch; the cloud counts from the machine's start."""
    UNSEEN_END = "an end that no runner saw"
    """The ledger has only a bound for the instance's end; the bill shows how long the cloud charged for it."""
    ROUNDING = "rounding"
    TAX = "tax"
    CREDIT = "credits, discounts"
    VOLUME = "volumes, which the ledger counts at a list price"
    NETWORK = "addresses and traffic"
    SERVICE = "other services, which the ledger does not count"


_BY_KIND = {
    ChargeKind.TAX: Reason.TAX,
    ChargeKind.CREDIT: Reason.CREDIT,
    ChargeKind.VOLUME: Reason.VOLUME,
    ChargeKind.NETWORK: Reason.NETWORK,
    ChargeKind.ROUNDING: Reason.ROUNDING,
    ChargeKind.SERVICE: Reason.SERVICE,
}
_ATTACHED = (ChargeKind.VOLUME, ChargeKind.NETWORK)


@dataclass(frozen=True)
class ExplainedPart:
    """A part of the difference, and its reason. The amount is positive if the cloud charged more."""

    reason: Reason
    usd: Decimal


@dataclass(frozen=True)
class Line:
    """
    One line of the comparison. It compares the cost of one instance, `member` of `launch`. If `launch` is None, the
    line is about other charges of the run.

    `ours_usd` is the ledger's amount, and `theirs_usd` the cloud's. `why` says what is known about the unexplained part
    of the difference; "" if the whole difference is explained.
    """

    launch: int | None
    resource: str
    what: str
    ours_usd: Decimal
    theirs_usd: Decimal
    parts: tuple[ExplainedPart, ...]
    why: str
    charges: tuple[Charge, ...]
    member: int = 0

    @property
    def difference_usd(self) -> Decimal:
        return self.theirs_usd - self.ours_usd

    @property
    def explained_usd(self) -> Decimal:
        return _sum(part.usd for part in self.parts)

    @property
    def unexplained_usd(self) -> Decimal:
        return self.difference_usd - self.explained_usd


@dataclass(frozen=True)
class Reconciliation:
    """All lines about a run: first its instances, sorted by name, then other resources, then disks and addresses."""

    statement: Statement
    lines: tuple[Line, ...]

    @property
    def ours_usd(self) -> Decimal:
        return _sum(line.ours_usd for line in self.lines)

    @property
    def theirs_usd(self) -> Decimal:
        return _sum(line.theirs_usd for line in self.lines)

    @property
    def parts(self) -> tuple[ExplainedPart, ...]:
        """The explained parts of all lines, summed by reason."""
        sums = {
            reason: _sum(part.usd for line in self.lines for part in line.parts if part.reason is reason)
            for reason in Reason
        }
        met = {part.reason for line in self.lines for part in line.parts}
        return tuple(ExplainedPart(reason, usd) for reason, usd in sums.items() if reason in met)

    @property
    def unexplained(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.unexplained_usd)


def line_filter(state: RunState) -> LineFilter:
    return LineFilter(state.created.uid, frozenset(_instances(state)))


def reconcile(state: RunState, statement: Statement, now: datetime) -> Reconciliation:
    """Compare a run with a statement. Each instance of the run, and each charge, appears in exactly one line."""
    ours = _instances(state)
    by_resource: dict[str, list[Charge]] = {}
    charges = with_corrections(statement.charges)
    beside = tuple(charge for charge in charges if charge.kind in _ATTACHED)
    for charge in (charge for charge in charges if charge.kind not in _ATTACHED):
        by_resource.setdefault(charge.resource, []).append(charge)
    lines = [
        _InstanceLine(state, name, statement, tuple(by_resource.get(instance_id, ())), now).line(instance_id)
        for instance_id, name in ours.items()
    ]
    lines += [_not_in_ledger(resource, tuple(found)) for resource, found in by_resource.items() if resource not in ours]
    attached = _attached(state, statement, beside, now)
    return Reconciliation(statement, (*lines, attached) if attached.ours_usd or beside else tuple(lines))


def _attached(state: RunState, statement: Statement, charges: tuple[Charge, ...], now: datetime) -> Line:
    """
    Compare the disks, addresses and traffic of all instances of the run in one line, because bills do not show to which
    instances these belong.
    """
    rule = state.created.billing
    whole, disks_too, alone = (
        _sum(
            launch.meter(each, at).cost_until(_until(member, now))
            for launch in state.launches.values()
            for at, member in enumerate(launch.members)
        )
        for each in (rule, without_address(rule), machine_alone(rule))
    )
    ours = {ChargeKind.VOLUME: disks_too - alone, ChargeKind.NETWORK: whole - disks_too}
    theirs = {kind: _sum(charge.amount_usd for charge in charges if charge.kind is kind) for kind in _ATTACHED}
    why = ""
    if ours[ChargeKind.VOLUME] and theirs[ChargeKind.VOLUME] > DISKS_MOST * ours[ChargeKind.VOLUME]:
        why = f"disks cost more than {DISKS_MOST} times what the ledger says: a disk may have outlived its instance"
    parts = [
        ExplainedPart(Reason.NOT_IN_FILE if statement.spot_only else _BY_KIND[kind], theirs[kind] - ours[kind])
        for kind in _ATTACHED
        if kind is not ChargeKind.VOLUME or not why
    ]
    return Line(
        launch=None,
        resource="disks and addresses",
        what="attached to the instances of the run",
        ours_usd=whole - alone,
        theirs_usd=_sum(charge.amount_usd for charge in charges),
        parts=tuple(part for part in parts if part.usd),
        why=why,
        charges=charges,
    )


def _until(member: Member, now: datetime) -> datetime:
    return now if member.gone is None else member.gone.ended_at


def _instances(state: RunState) -> dict[str, MemberName]:
    """Return the names of all instances with a known id, keyed by id, in the order of the names."""
    return {
        fact.instance_id: MemberName(launch.number, at)
        for launch in state.launches.values()
        if launch.intent.offering.capacity_type is not CapacityType.OWN  # no cloud bills the user's own machine
        for at, member in enumerate(launch.members)
        if (fact := member.gone or member.recorded) is not None and fact.instance_id
    }


def _sum(amounts: Iterable[Decimal]) -> Decimal:
    return sum(amounts, ZERO)


def _beside_usage(charges: Iterable[Charge]) -> tuple[ExplainedPart, ...]:
    """Sum the charges that are not for running an instance, such as taxes. Return one part for each reason."""
    sums: dict[Reason, Decimal] = {}
    for charge in charges:
        if charge.kind in _BY_KIND and charge.amount_usd:
            reason = _BY_KIND[charge.kind]
            sums[reason] = sums.get(reason, ZERO) + charge.amount_usd
    return tuple(ExplainedPart(reason, usd) for reason, usd in sums.items())


def _not_in_ledger(resource: str, charges: tuple[Charge, ...]) -> Line:
    """Return the line for a resource that is not in the ledger. Taxes and credits count as explained."""
    unknown = {charge.what for charge in charges if charge.kind not in _BY_KIND}
    return Line(
        launch=None,
        resource=resource or "the run as a whole",
        what=", ".join(sorted(unknown or {charge.what for charge in charges})),
        ours_usd=ZERO,
        theirs_usd=_sum(charge.amount_usd for charge in charges),
        parts=_beside_usage(charges),
        why=f"it has the run's tag, but is not in the ledger: {', '.join(sorted(unknown))}" if unknown else "",
        charges=charges,
    )


class _InstanceLine:
    def __init__(
        self, state: RunState, name: MemberName, statement: Statement, charges: tuple[Charge, ...], now: datetime
    ) -> None:
        self._state = state
        self._name = name
        self._rule = machine_alone(state.created.billing)
        self._published = machine_alone(statement.rule)
        self._launch = state.launches[name.launch]
        self._member = state.member(name)
        self._statement = statement
        self._charges = charges
        self._usage = [charge for charge in charges if charge.kind is ChargeKind.USAGE]
        self._gone = self._member.gone
        self._until = _until(self._member, now)

    def line(self, instance_id: str) -> Line:
        ours, in_file = self._cost(self._rule), self._in_file(self._meter(self._published))
        residual = _sum(charge.amount_usd for charge in self._usage) - in_file
        reason = self._reason(residual, in_file)
        parts = [*self._by_rule(ours, in_file), *([] if reason is None else [ExplainedPart(reason, residual)])]
        found = tuple(part for part in (*parts, *_beside_usage(self._charges)) if part.usd)
        theirs = _sum(charge.amount_usd for charge in self._charges)
        settled = ours + _sum(part.usd for part in found) == theirs
        offering = self._launch.intent.offering
        return Line(
            launch=self._name.launch,
            resource=instance_id,
            what=f"{offering.instance_type} {offering.capacity_type.in_words} in {offering.zone}",
            ours_usd=ours,
            theirs_usd=theirs,
            parts=found,
            why="" if settled else "; ".join(self._doubts(in_file, residual if reason is None else ZERO)),
            charges=self._charges,
            member=self._name.member,
        )

    def _by_rule(self, ours: Decimal, in_file: Decimal) -> Iterator[ExplainedPart]:
        """
        Yield three parts of the difference. By the cloud's published rule, the minimum time adds to the ledger's cost,
        and refunds reduce it. The third part is the cost of the hours that the bill's file does not cover, as a
        negative amount.
        """
        minimum = self._cost(replace(self._rule, minimum_s=self._published.minimum_s))
        expected = self._cost(self._published)
        yield ExplainedPart(Reason.MINIMUM, minimum - ours)
        yield ExplainedPart(Reason.REFUND, expected - minimum)
        yield ExplainedPart(Reason.NOT_IN_FILE if self._absent else Reason.NOT_COVERED, in_file - expected)

    def _cost(self, rule: BillingRule) -> Decimal:
        return self._meter(rule).cost_until(self._until)

    def _meter(self, rule: BillingRule) -> Meter:
        return self._launch.meter(rule, self._name.member)

    @property
    def _spot(self) -> bool:
        return self._launch.intent.offering.capacity_type is CapacityType.SPOT

    @property
    def _absent(self) -> bool:
        return self._statement.spot_only and not self._spot

    @property
    def _began(self) -> datetime:
        """The time from which the ledger counts the instance's cost. If it counts no cost, the instance's end."""
        return self._until if self._member.billed_from is None else self._member.billed_from

    def _in_file(self, meter: Meter) -> Decimal:
        """Return the part of the cost that falls into the hours that the bill's file covers."""
        since, until = self._statement.since, self._statement.until
        if since is None or until is None or self._absent:
            return ZERO
        whole = meter.cost_until(self._until)
        last = whole if self._until <= until else min(whole, meter.cost_until(until))
        return max(ZERO, last - (meter.cost_until(since) if since < self._until else last))

    def _reason(self, residual: Decimal, in_file: Decimal) -> Reason | None:
        """
        Return the reason why the bill differs from the computed amount `in_file`; None if no reason fits. `residual` is
        the bill's charge for running the instance, minus `in_file`.
        """
        if abs(residual) <= self._tolerance():
            return Reason.ROUNDING
        if residual == -in_file and self._may_be_free:
            return Reason.REFUND
        if self._end_is_bounded and -in_file <= residual <= self._until_its_time_to_live() + self._tolerance():
            return Reason.UNSEEN_END
        if -self._starting() - self._tolerance() <= residual < 0 and self._usage:
            return Reason.STARTING
        return None

    def _tolerance(self) -> Decimal:
        dearest = max((price.usd_per_hour for price in self._member.prices), default=ZERO)
        return hourly(dearest, EDGES) + _sum(charge.precision_usd for charge in self._usage)

    @property
    def _may_be_free(self) -> bool:
        """True if the cloud may refund the instance: on spot, not terminated by spotrun, and ended soon enough."""
        gone = self._gone
        if gone is None or not self._spot or gone.ended_by is EndedBy.USER:
            return False
        ended_at = switched_off_at(self._member.prices) or gone.ended_at
        return (ended_at - self._began).total_seconds() < self._statement.rule.free_if_interrupted_within_s

    @property
    def _end_is_bounded(self) -> bool:
        """True if the bill lists the instance's usage, and the end in the ledger is only an estimate."""
        return bool(self._usage) and self._gone is not None and bool(self._gone.bounded_by)

    def _until_its_time_to_live(self) -> Decimal:
        """
        Return how much more the instance would have cost if it had run for its whole time-to-live, the longest that an
        instance can run. If the bill exceeds the ledger by even more, a late end cannot be the reason.
        """
        life = timedelta(seconds=self._launch.intent.time_to_live_s)
        return metered(self._member.prices, self._until, self._began + life)

    def _starting(self) -> Decimal:
        """Return the ledger's cost of the time from the launch until the machine began to run spotrun's code."""
        booted_at = self._state.booted_at(self._name)
        return ZERO if booted_at is None else metered(self._member.prices, self._began, booted_at)

    def _doubts(self, in_file: Decimal, residual: Decimal) -> Iterator[str]:
        others = {charge.what for charge in self._charges if charge.kind is ChargeKind.OTHER and charge.amount_usd}
        if others:
            yield f"a charge of another kind: {', '.join(sorted(others))}"
        if residual and not in_file:
            yield "the cloud charged for hours for which the ledger has no cost"
        elif residual and not self._usage:
            yield "the file covers the instance's hours, but has no line for the instance"
        elif residual:
            yield from self._measured()

    def _measured(self) -> Iterator[str]:
        """
        Say whether the charged time, the price or both differ. If the bill does not state the charged time, compute its
        price from the ledger's time.
        """
        charged = _sum(charge.amount_usd for charge in self._usage)
        ours = exact_seconds(max(timedelta(0), self._covered())) / _SECONDS_PER_HOUR
        theirs = _sum(charge.hours for charge in self._usage if charge.hours is not None) or ours
        known = [price.usd_per_hour for price in self._member.prices]
        rest = self._tolerance()
        longer = abs(theirs - ours) * _SECONDS_PER_HOUR > exact_seconds(EDGES)
        if theirs and not (longer and theirs * min(known) - rest <= charged <= theirs * max(known) + rest):
            rate, rates = round(charged / theirs, 6), " then ".join(f"${plain_usd(price)}" for price in known)
            yield f"the bill has ${plain_usd(rate)}/h, the ledger has {rates}/h"
        if longer:
            yield f"the bill has {theirs * _SECONDS_PER_HOUR:.0f} s, the ledger has {ours * _SECONDS_PER_HOUR:.0f} s"

    def _covered(self) -> timedelta:
        """Return how long the instance ran during the hours that the bill's file covers, according to the ledger."""
        assert self._statement.since is not None
        assert self._statement.until is not None
        ended_at = switched_off_at(self._member.prices) or self._until
        return min(ended_at, self._statement.until) - max(self._began, self._statement.since)
