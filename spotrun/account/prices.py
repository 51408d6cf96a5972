"""Computes the hourly prices of a run's instances over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from spotrun.account.timeline import account_end
from spotrun.offering import CapacityType
from spotrun.run.billing import ZERO, Meter, switched_off_at
from spotrun.run.events import BillingRule
from spotrun.run.member import Member
from spotrun.run.state import Launch, RunState

WIDTH = 24


def hourly_prices(state: RunState, now: datetime, width: int = WIDTH) -> list[Decimal | None]:
    """
    Return the hourly price of the newest instance at `width` evenly spaced times, from the run's creation to its end
    or, if it has not ended, to `now`. The price is None at a time when no instance was rented.
    """
    launches = list(state.launches.values())
    whole = account_end(state, now) - state.created_at
    moments = (state.created_at + whole * (n + 1) / width for n in range(width))
    return [_price_at(launches, moment) for moment in moments]


def _price_at(launches: Sequence[Launch], moment: datetime) -> Decimal | None:
    for launch in reversed(launches):
        gone = launch.gone is not None and launch.gone.ended_at < moment
        if launch.billed_from is not None and launch.billed_from <= moment and not gone:
            in_effect = [each for each in launch.prices if each.since <= moment] or list(launch.prices[:1])
            return in_effect[-1].usd_per_hour if in_effect else None
    return None


class Rented(NamedTuple):
    """A run's instances of one type and capacity type, with their total hourly price, excluding disks and addresses."""

    instance_type: str
    capacity_type: CapacityType
    instances: int
    usd_per_hour: Decimal


def rented(state: RunState) -> list[Rented]:
    """
    Return the instances billed now, at the newest recorded prices. They are grouped by type and capacity type, in
    the order of each group's first launch.
    """
    found: dict[tuple[str, CapacityType], list[Decimal]] = {}
    for launch in state.launches.values():
        offering = launch.intent.offering
        for member in launch.members:
            if member.gone is None and member.billed_from is not None:
                price = member.prices[-1].usd_per_hour if member.prices else offering.price_usd_per_hour
                found.setdefault((offering.instance_type, offering.capacity_type), []).append(price)
    return [Rented(*kind, len(prices), sum(prices, ZERO)) for kind, prices in found.items()]


class Charge(NamedTuple):
    """
    A stretch of time in which an instance was billed at one price. The price does not include the instance's disk and
    address.
    """

    since: datetime
    until: datetime
    usd_per_hour: Decimal


def charges(launch: Launch, rule: BillingRule, end: datetime) -> list[Charge]:
    """
    Return the charges of all instances of a launch, each from the instance's first billed moment to its end or, if
    earlier, to `end`.

    There is no charge while the cloud bills nothing for the machine, while the machine is switched off and only its
    disk is billed, or while its price is unknown. If the cloud billed an instance before the ledger recorded the
    instance's first price, that price applies from the start of billing.
    """
    meters = zip(launch.members, launch.meters(rule), strict=True)
    return [charge for member, meter in meters for charge in _charges(member, meter, end)]


def _charges(member: Member, meter: Meter, end: datetime) -> list[Charge]:
    start, until = member.billed_from, end if member.gone is None else min(end, member.gone.ended_at)
    until = min(until, switched_off_at(member.prices) or until)
    if start is None or not meter.time_until(until):
        return []
    since = [start, *(max(start, price.since) for price in member.prices[1:])]
    found = zip(since, [*since[1:], until], member.prices, strict=False)
    return [Charge(since, min(to, until), price.usd_per_hour) for since, to, price in found if since < min(to, until)]
