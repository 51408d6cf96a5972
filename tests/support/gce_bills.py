"""What Compute Engine charges for instances, counted from the fake's own record of them and of their disks."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

from tests.support.gce_catalog import DISK_PRICES, KINDS
from tests.support.gce_charges import ADDRESS_PRICES, MONTH_H, Charges, Kept, Running


def dollars(charges: Charges, *names: str) -> Fraction:
    """Of these instances, or of all if none is named. They have ended, each with its one disk."""
    disks = {disk.name: disk for disk in charges.kept}
    chosen = (each for each in charges.running if not names or each.name in names)
    return sum((_of(each, disks[each.name]) for each in chosen), Fraction(0))


def _of(running: Running, disk: Kept) -> Fraction:
    """
    By the second from RUNNING, 60 s at least; free if preempted in the first minute. The address goes with the machine,
    and the disk is there until it is deleted.
    """
    assert running.until is not None
    assert disk.until is not None
    kind = KINDS[running.kind]
    ran = max(running.until - running.since, timedelta(minutes=1))
    machine = Fraction(0) if running.is_free else Fraction(kind.spot if running.is_spot else kind.on_demand)
    address = Fraction(ADDRESS_PRICES[running.is_spot])
    kept = Fraction(DISK_PRICES[disk.kind]) * disk.size_gb / MONTH_H
    return _hours(ran) * (machine + address) + _hours(max(disk.until - running.since, ran)) * kept


def _hours(length: timedelta) -> Fraction:
    return Fraction(length // timedelta(microseconds=1), 3_600_000_000)
