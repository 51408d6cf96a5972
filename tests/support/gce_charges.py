"""
What a project owes for its instances and disks, counted by itself and by nobody's ledger.

https://cloud.google.com/compute/vm-instance-pricing: by the second from RUNNING, a minute at least.
https://cloud.google.com/compute/docs/instances/spot: a Spot VM that is preempted in its first minute is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from tests.support.gce_catalog import DISK_PRICES, KINDS

MINIMUM = timedelta(minutes=1)
MONTH_H = 730
"""Hours: https://cloud.google.com/compute/disks-image-pricing"""
ADDRESS_PRICES = {False: Decimal("0.005"), True: Decimal("0.0025")}
"""USD an hour of an external address, on demand and on spot: https://cloud.google.com/vpc/network-pricing"""
_HOUR_S = Decimal(3600)


class Step(NamedTuple):
    """From `since` on a spot VM costs this much an hour."""

    since: datetime
    usd: Decimal


@dataclass(eq=False)
class Running:
    """An instance's time from RUNNING to its end. `was_preempted`: that was a preemption."""

    name: str
    zone: str
    kind: str
    is_spot: bool
    has_address: bool
    since: datetime
    until: datetime | None = None
    was_preempted: bool = False

    @property
    def is_free(self) -> bool:
        return self.was_preempted and self.until is not None and self.until - self.since < MINIMUM

    def billed_s(self, now: datetime) -> int:
        """Whole seconds so far."""
        return 0 if self.is_free else math.ceil(max((self.until or now) - self.since, MINIMUM).total_seconds())


@dataclass(eq=False)
class Kept:
    """A disk, until it is deleted."""

    name: str
    zone: str
    kind: str
    size_gb: int
    since: datetime
    until: datetime | None = None

    def billed_s(self, now: datetime) -> int:
        return math.ceil(((self.until or now) - self.since).total_seconds())

    def usd(self, now: datetime) -> Decimal:
        return DISK_PRICES[self.kind] * self.size_gb * self.billed_s(now) / (MONTH_H * _HOUR_S)


class Charges:
    """`steps` are the spot prices of a machine type in a region that are not those of the catalog."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self.kept: list[Kept] = []
        self.steps: dict[tuple[str, str], list[Step]] = {}

    def instance_usd(self, each: Running, now: datetime) -> Decimal:
        """With its address."""
        seconds = each.billed_s(now)
        price = ADDRESS_PRICES[each.is_spot] if each.has_address else Decimal(0)
        address = price * seconds / _HOUR_S
        if not each.is_spot:
            return address + KINDS[each.kind].on_demand * seconds / _HOUR_S
        until = each.since + timedelta(seconds=seconds)
        region = each.zone.rpartition("-")[0]
        parts = self.spot_prices(each.kind, region, each.since, until) if seconds else ()
        return address + sum((step.usd * _seconds(length) / _HOUR_S for step, length in parts), Decimal(0))

    def usd(self, now: datetime) -> Decimal:
        instances = (self.instance_usd(each, now) for each in self.running)
        return sum(instances, Decimal(0)) + sum((each.usd(now) for each in self.kept), Decimal(0))

    def spot_prices(self, kind: str, region: str, since: datetime, until: datetime) -> Iterator[tuple[Step, timedelta]]:
        """Each price within this time, from when it held there, and for how long."""
        steps = self._all_steps(kind, region, since)
        ends = [*(step.since for step in steps[1:]), until]
        for step, end in zip(steps, ends, strict=True):
            first, last = max(step.since, since), min(end, until)
            if first < last:
                yield Step(first, step.usd), last - first

    def _all_steps(self, kind: str, region: str, since: datetime) -> Sequence[Step]:
        known = sorted(self.steps.get((kind, region), ()))
        first = Step(min([since, *(step.since for step in known)]), KINDS[kind].spot)
        return [first, *known]


def _seconds(length: timedelta) -> Decimal:
    return Decimal(length // timedelta(microseconds=1)) / 1_000_000
