"""The cloud's charges, in the same terms for every bill format."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from spotrun.run.events import BillingRule


class ChargeKind(StrEnum):
    """The purpose of a line of a bill. The ledger has the price of `USAGE`, and list prices of disks and addresses."""

    USAGE = "usage"
    VOLUME = "volume"
    NETWORK = "network"
    TAX = "tax"
    CREDIT = "credit"
    """Credits, discounts, refunds and corrections."""
    ROUNDING = "rounding"
    OTHER = "other"


def of_amount(kind: ChargeKind, amount_usd: Decimal) -> ChargeKind:
    """Return CREDIT for a negative amount, which corrects other lines, unless it is a tax or rounding; else `kind`."""
    return kind if amount_usd >= 0 or kind in (ChargeKind.TAX, ChargeKind.ROUNDING) else ChargeKind.CREDIT


@dataclass(frozen=True)
class Charge:
    """
    One line of a bill, or one of several amounts in a line.

    `line` counts from 1 in the file `path`. `resource` is the cloud's name of the charged resource: an instance id, a
    volume id, or "". `hours` is the metered time; None if the line lacks it. `precision_usd` is the maximum rounding
    error of the amount in the file.
    """

    path: str
    line: int
    resource: str
    kind: ChargeKind
    what: str
    start: datetime
    end: datetime
    amount_usd: Decimal
    precision_usd: Decimal
    hours: Decimal | None = None


@dataclass(frozen=True)
class LineFilter:
    """Selects the lines of a bill that are about one run: lines with its tag, and lines of its instances."""

    run_uid: str
    instance_ids: Collection[str]

    def includes(self, tagged_run: str, resource: str) -> bool:
        return tagged_run == self.run_uid or resource in self.instance_ids


@dataclass(frozen=True)
class Statement:
    """
    The charges for one run in the files of a bill.

    `rule` is the cloud's published billing rule. The files cover the account's instance hours from `since` to `until`;
    None if they have no instance hours at all. With `spot_only` they do not list on-demand instances.
    """

    paths: tuple[str, ...]
    title: str
    rule: BillingRule
    since: datetime | None
    until: datetime | None
    charges: tuple[Charge, ...]
    spot_only: bool = False


class Coverage:
    """The time that the lines of a bill cover so far."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        self.until: datetime | None = None

    def add(self, start: datetime, end: datetime) -> None:
        self.since = start if self.since is None else min(self.since, start)
        self.until = end if self.until is None else max(self.until, end)
