"""The cloud's statement of what it charged, in our words, whatever the format that it came in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from spotrun.run.events import BillingRule


class ChargeKind(StrEnum):
    """What a line of a bill is for. The ledger has the price of `USAGE`, and of disks and addresses a list price."""

    USAGE = "usage"
    VOLUME = "volume"
    NETWORK = "network"
    TAX = "tax"
    CREDIT = "credit"
    """Credits, discounts, refunds and corrections."""
    ROUNDING = "rounding"
    OTHER = "other"


@dataclass(frozen=True)
class Charge:
    """
    One line of the statement, or one of several amounts in it.

    `line` counts from 1 in the file `path`. `resource` is the cloud's name of what was charged: an instance id, a
    volume id, or "". `hours` is the metered time where the line says it. `precision_usd` is by how much the amount may
    have been rounded where it was written down.
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
    """Which lines of a bill are about one run: those with its tag, and those of an instance in its ledger."""

    run_uid: str
    instance_ids: Collection[str]

    def includes(self, tagged_run: str, resource: str) -> bool:
        return tagged_run == self.run_uid or resource in self.instance_ids


@dataclass(frozen=True)
class Statement:
    """
    What the files of a bill say about one run.

    `rule` is how this cloud publishes that it bills. From `since` to `until` they have the instance hours of the
    account; None where there are none at all. `spot_only`: they say nothing of on-demand instances.
    """

    paths: tuple[str, ...]
    title: str
    rule: BillingRule
    since: datetime | None
    until: datetime | None
    charges: tuple[Charge, ...]
    spot_only: bool = False


class Coverage:
    """The stretch of time that a bill tells of, as its lines are read."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        self.until: datetime | None = None

    def add(self, start: datetime, end: datetime) -> None:
        self.since = start if self.since is None else min(self.since, start)
        self.until = end if self.until is None else max(self.until, end)
