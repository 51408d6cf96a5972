"""A cloud's charges, in the same form for every bill format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from spotrun.run.events import BillingRule


class ChargeKind(StrEnum):
    """
    The kind of a charge. `USAGE` is for the running machine itself, whose prices the ledger records. Disks (`VOLUME`)
    and addresses (`NETWORK`) have only list prices in the ledger.
    """

    USAGE = "usage"
    VOLUME = "volume"
    NETWORK = "network"
    TAX = "tax"
    CREDIT = "credit"
    """Credits, discounts, refunds and corrections."""
    ROUNDING = "rounding"
    SERVICE = "service"
    """Another service of the cloud, such as its monitoring, whose line names an instance or has the run's tag."""
    OTHER = "other"


def of_amount(kind: ChargeKind, amount_usd: Decimal) -> ChargeKind:
    """
    Return the kind of a charge that the bill lists under `kind`. A negative charge corrects other lines, so its kind is
    CREDIT. Taxes and roundings keep their kind, because they can be negative without correcting anything.
    """
    return kind if amount_usd >= 0 or kind in (ChargeKind.TAX, ChargeKind.ROUNDING) else ChargeKind.CREDIT


@dataclass(frozen=True)
class Charge:
    """
    One line of a bill, or one of several amounts in a line.

    `line` counts from 1 in the file `path`. `resource` is the cloud's name for the charged resource: an instance id, a
    volume id, or "". `hours` is the metered time; None if the line does not state it. `precision_usd` is the maximum
    rounding error of the amount in the file.
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


def with_corrections(charges: Sequence[Charge]) -> list[Charge]:
    """
    Return the charges, with the kind CREDIT for each usage that the bill takes back in full and charges a second time.

    A cloud corrects a line by a line with the negative amount and a new line for the same time. The first line and its
    negation cancel out, so only the new line counts as usage.
    """
    taken_back = Counter((_place(each), -each.amount_usd) for each in charges if each.kind is ChargeKind.CREDIT)
    lines = Counter(_place(each) for each in charges if each.kind is ChargeKind.USAGE)
    found = []
    for each in charges:
        place, whole = _place(each), (_place(each), each.amount_usd)
        if each.kind is ChargeKind.USAGE and lines[place] > 1 and taken_back[whole]:
            lines[place] -= 1
            taken_back[whole] -= 1
            found.append(replace(each, kind=ChargeKind.CREDIT))
        else:
            found.append(each)
    return found


def _place(charge: Charge) -> tuple[str, str, datetime, datetime]:
    return charge.resource, charge.what, charge.start, charge.end


@dataclass(frozen=True)
class LineFilter:
    """Selects the lines of a bill that belong to one run: those with the run's tag, and those of its instances."""

    run_uid: str
    instance_ids: Collection[str]

    def includes(self, tagged_run: str, resource: str) -> bool:
        return tagged_run == self.run_uid or resource in self.instance_ids


@dataclass(frozen=True)
class Statement:
    """
    The charges for one run in a bill's files.

    `rule` is the cloud's published billing rule. The files list instance hours (of any run in the account) from
    `since` to `until`; both are None if the files list none. `spot_only` is True if files of this kind never list
    on-demand instances.
    """

    paths: tuple[str, ...]
    title: str
    rule: BillingRule
    since: datetime | None
    until: datetime | None
    charges: tuple[Charge, ...]
    spot_only: bool = False


class Coverage:
    """The period that a bill covers: from the earliest start to the latest end in the lines read so far."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        self.until: datetime | None = None

    def add(self, start: datetime, end: datetime) -> None:
        self.since = start if self.since is None else min(self.since, start)
        self.until = end if self.until is None else max(self.until, end)
