"""
`advice` of Compute Engine: what spot VMs cost and how many were preempted.

Prices are those of a year, in steps at midnight of the Pacific coast; shares of preempted VMs those of 30 days. There
are none for N1 with accelerators, custom types and TPUs.
https://cloud.google.com/compute/docs/instances/view-spot-preemption-price
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.support.gce_answers import PACIFIC, URL, Json, bad_request, invalid, last_part
from tests.support.gce_catalog import KINDS, REGIONS, MachineKind
from tests.support.gce_project import GceProject
from tests.support.gce_supply import SPOT

YEAR, DAYS = timedelta(days=365), 30


def capacity_history(project: GceProject, region: str, asked: Json) -> Json:
    properties = asked.get("instanceProperties") or {}
    kind = _kind(properties.get("machineType"), region)
    if properties.get("guestAccelerators"):
        raise bad_request("Accelerators are not supported.")
    model = (properties.get("scheduling") or {}).get("provisioningModel")
    if model not in (None, SPOT):
        raise invalid("instanceProperties.scheduling.provisioningModel", model, "Only SPOT is supported.")
    place = str((asked.get("locationPolicy") or {}).get("location") or f"regions/{region}")
    if last_part(place) not in (region, *REGIONS[region]):
        raise invalid("locationPolicy.location", place, "It is not in this region.")
    wanted = asked.get("types") or ["PRICE", "PREEMPTION"]
    found: dict[str, Any] = {"machineType": kind.name, "location": _link(project, place)}
    if "PRICE" in wanted:
        found["priceHistory"] = _prices(project, kind, region)
    if "PREEMPTION" in wanted:
        found["preemptionHistory"] = _preemptions(project, kind)
    return found


def _kind(name: str | None, region: str) -> MachineKind:
    kind = KINDS.get(last_part(name or ""))
    if kind is None or not set(kind.zones) & set(REGIONS[region]):
        raise invalid("instanceProperties.machineType", name, "Machine type is not supported.")
    return kind


def _link(project: GceProject, place: str) -> str:
    return f"{URL}projects/{project.name}/{'/'.join(place.split('/')[-2:])}"


def _prices(project: GceProject, kind: MachineKind, region: str) -> list[Json]:
    until = _midnight(project.now)
    steps = project.charges.spot_prices(kind.name, region, until - YEAR, until)
    return [
        {"interval": _interval(step.since, step.since + length), "listPrice": _money(step.usd)}
        for step, length in steps
    ]


def _preemptions(project: GceProject, kind: MachineKind) -> list[Json]:
    last = _midnight(project.now)
    days = [last - timedelta(days=number) for number in range(DAYS, 0, -1)]
    return [{"interval": _interval(day, day + timedelta(days=1)), "preemptionRate": kind.preempted} for day in days]


def _midnight(at: datetime) -> datetime:
    """The next one on the Pacific coast."""
    day = at.astimezone(PACIFIC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (day + timedelta(days=1)).astimezone(UTC)


def _interval(since: datetime, until: datetime) -> Json:
    return {"startTime": since.isoformat().replace("+00:00", "Z"), "endTime": until.isoformat().replace("+00:00", "Z")}


def _money(usd: Decimal) -> Json:
    units = int(usd)
    return {"currencyCode": "USD", "units": str(units), "nanos": int((usd - units) * 1_000_000_000)}
