"""
What Google would export of a project's charges into BigQuery: the detailed usage cost, an hour a line.

The fields are those of https://cloud.google.com/billing/docs/how-to/export-data-bigquery-tables/detailed-usage. A
machine has a line for each of its parts, with its own name and labels; so has its boot disk, whose name is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.support.bills import export_row
from tests.support.gce_catalog import KINDS
from tests.support.gce_charges import ADDRESS_PRICES, DISK_PRICES, MONTH_H, Charges, Kept, Running

HOUR = timedelta(hours=1)
_PARTS = (
    ("{family} Instance Core running in Iowa", Decimal("0.3")),
    ("{family} Instance Ram running in Iowa", Decimal("0.7")),
)
_GPU_PARTS = (
    ("{family} Instance Core running in Iowa", Decimal("0.2")),
    ("{family} Instance Ram running in Iowa", Decimal("0.1")),
    ("{gpu} running in Iowa", Decimal("0.65")),
    ("SSD backed Local Storage", Decimal("0.05")),
)
_GPU_WORDS = {"nvidia-l4": "Nvidia L4 GPU", "nvidia-rtx-pro-6000": "RTX 6000 96GB"}


def exported(charges: Charges, labels: Mapping[str, Mapping[str, str]], now: datetime) -> list[dict[str, Any]]:
    """`labels` by the name of an instance; its disk has them too."""
    rows = [row for each in charges.running for row in _machine(charges, each, labels.get(each.name, {}), now)]
    return rows + [row for each in charges.kept for row in _disk(each, labels.get(each.name, {}), now)]


def _machine(charges: Charges, each: Running, labels: Mapping[str, str], now: datetime) -> Iterator[dict[str, Any]]:
    until = each.since + timedelta(seconds=each.billed_s(now))
    for since, end in _hours(each.since, until):
        seconds = Decimal(int((end - since).total_seconds()))
        usd = _machine_usd(charges, each, since, end)
        for words, share in _PARTS if KINDS[each.kind].gpu is None else _GPU_PARTS:
            yield _row(each.name, "instances", _worded(words, each), since, end, usd * share, labels)
        if each.has_address:
            on = "Spot Preemptible" if each.is_spot else "Standard"
            address = ADDRESS_PRICES[each.is_spot] * seconds / 3600
            yield _row(each.name, "instances", f"External IP Charge on a {on} VM", since, end, address, labels)


def _machine_usd(charges: Charges, each: Running, since: datetime, end: datetime) -> Decimal:
    if not each.is_spot:
        return KINDS[each.kind].on_demand * Decimal((end - since).total_seconds()) / 3600
    steps = charges.spot_prices(each.kind, each.zone.rpartition("-")[0], since, end)
    return sum((step.usd * Decimal(length.total_seconds()) / 3600 for step, length in steps), Decimal(0))


def _disk(each: Kept, labels: Mapping[str, str], now: datetime) -> Iterator[dict[str, Any]]:
    words = "Balanced PD Capacity" if each.kind == "pd-balanced" else "Hyperdisk Balanced Capacity in Iowa"
    for since, end in _hours(each.since, each.since + timedelta(seconds=each.billed_s(now))):
        usd = DISK_PRICES[each.kind] * each.size_gb * Decimal((end - since).total_seconds()) / (MONTH_H * 3600)
        yield _row(each.name, "disks", words, since, end, usd, labels)


def _worded(words: str, each: Running) -> str:
    kind = KINDS[each.kind]
    gpu = "" if kind.gpu is None else _GPU_WORDS[kind.gpu.name]
    plain = words.format(family=kind.family.upper(), gpu=gpu)
    if not each.is_spot:
        return plain
    if words.startswith("{family}"):
        return f"Spot Preemptible {plain}"
    return plain.replace(" running", " attached to Spot Preemptible VMs running")


def _hours(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    while since < until:
        end = min(until, since.replace(minute=0, second=0, microsecond=0) + HOUR)
        yield since, end
        since = end


def _row(
    name: str, of: str, sku: str, since: datetime, end: datetime, usd: Decimal, labels: Mapping[str, str]
) -> dict[str, Any]:
    hour = since.replace(minute=0, second=0, microsecond=0)
    return export_row(name, sku, (hour, hour + HOUR), (end - since).total_seconds(), usd, labels, of)
