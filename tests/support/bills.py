"""
Bills for tests, as the clouds write them, about the instances of a ledger.

What is billed follows from the published rules alone: whole seconds, 60 at least, each hour a line, spot at the price
of the moment, and nothing for spot that the cloud took back early. Columns and their order are those of the documents:

    Cost and Usage Report  docs.aws.amazon.com/cur/latest/userguide/data-dictionary.html
    its second generation  docs.aws.amazon.com/cur/latest/userguide/table-dictionary-cur2.html
    spot data feed         docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-data-feeds.html
    Google Cloud export    cloud.google.com/billing/docs/how-to/export-data-bigquery-tables/detailed-usage
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from spotrun.instance import EndedBy
from spotrun.offering import CapacityType
from spotrun.run.billing import EC2_RULE
from spotrun.run.events import InstanceGone
from spotrun.run.state import Launch
from tests.support.histories import ON_DEMAND, History

HOUR = timedelta(hours=1)
COMPUTE = {CapacityType.SPOT: "USE2-SpotUsage:g5.xlarge", CapacityType.ON_DEMAND: "USE2-BoxUsage:g5.xlarge"}
UNTIL_ALL = datetime(2027, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Billed:
    """What one line charges for one instance-hour, or for something beside it."""

    resource: str
    capacity: CapacityType
    start: datetime
    end: datetime
    seconds: int
    usd_per_hour: Decimal
    line_type: str = "Usage"
    usage_type: str = ""
    run: str = ""
    amount: Decimal | None = None

    @property
    def hours(self) -> Decimal:
        return Decimal(self.seconds) / 3600

    @property
    def usd(self) -> Decimal:
        return self.hours * self.usd_per_hour if self.amount is None else self.amount


def billed(history: History, free_within: timedelta = HOUR, until: datetime = UNTIL_ALL) -> list[Billed]:
    """The lines of every instance that is gone, up to an hour that the export has."""
    launches = history.state.launches.values()
    gone = [(launch, member.gone) for launch in launches for member in launch.members if member.gone is not None]
    lines = [line for launch, end in gone for line in _hours(launch, end, free_within)]
    return [replace(line, run=history.uid) for line in lines if line.end <= until]


def _hours(launch: Launch, gone: InstanceGone, free_within: timedelta) -> Iterator[Billed]:
    assert gone.billed_from is not None
    if gone.ended_at <= gone.billed_from:
        return  # it never ran
    capacity = launch.intent.offering.capacity_type
    start = gone.billed_from.replace(microsecond=0)
    end = max(gone.ended_at.replace(microsecond=0), start + timedelta(seconds=60))
    if capacity is CapacityType.SPOT and gone.ended_by is EndedBy.CLOUD and gone.ended_at - start < free_within:
        return
    changes = [segment.since.replace(microsecond=0) for segment in gone.prices[1:]]
    cuts = sorted({start, end, *changes, *_full_hours(start, end)})
    for since, until in itertools.pairwise(cuts):
        price = [each for each in gone.prices if each.since.replace(microsecond=0) <= since][-1].usd_per_hour
        hour = since.replace(minute=0, second=0)
        seconds = int((until - since).total_seconds())
        yield Billed(gone.instance_id, capacity, hour, hour + HOUR, seconds, price, usage_type=COMPUTE[capacity])


def _full_hours(start: datetime, end: datetime) -> Iterator[datetime]:
    hour = start.replace(minute=0, second=0) + HOUR
    while hour < end:
        yield hour
        hour += HOUR


def beside(like: Billed, resource: str, line_type: str, usage_type: str, usd: str) -> Billed:
    """A charge of the same hour for something else: a volume, traffic, a tax, a credit."""
    return replace(like, resource=resource, line_type=line_type, usage_type=usage_type, amount=Decimal(usd))


# -- AWS ---------------------------------------------------------------------------------------------------------------


def cost_and_usage_rows(lines: Iterable[Billed], tagged: bool = True) -> list[dict[str, str]]:
    return [_cost_and_usage_row(index, line, tagged) for index, line in enumerate(lines)]


def _cost_and_usage_row(index: int, line: Billed, tagged: bool) -> dict[str, str]:
    start, end = (f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in (line.start, line.end))
    cost = f"{line.usd:.10f}"
    return {
        "identity/LineItemId": f"line{index}",
        "identity/TimeInterval": f"{start}/{end}",
        "bill/BillingEntity": "AWS",
        "bill/BillType": "Anniversary",
        "bill/PayerAccountId": "111122223333",
        "bill/BillingPeriodStartDate": "2026-03-01T00:00:00Z",
        "bill/BillingPeriodEndDate": "2026-04-01T00:00:00Z",
        "lineItem/UsageAccountId": "111122223333",
        "lineItem/LineItemType": line.line_type,
        "lineItem/UsageStartDate": start,
        "lineItem/UsageEndDate": end,
        "lineItem/ProductCode": "AmazonEC2",
        "lineItem/UsageType": line.usage_type,
        "lineItem/Operation": "RunInstances:SV005" if line.capacity is CapacityType.SPOT else "RunInstances",
        "lineItem/AvailabilityZone": "us-east-2a",
        "lineItem/ResourceId": line.resource,
        "lineItem/UsageAmount": f"{line.hours:.10f}",
        "lineItem/CurrencyCode": "USD",
        "lineItem/UnblendedRate": f"{line.usd_per_hour:.10f}",
        "lineItem/UnblendedCost": cost,
        "lineItem/BlendedCost": cost,
        "lineItem/LineItemDescription": f"${line.usd_per_hour} per instance hour",
        "lineItem/TaxType": "VAT" if line.line_type == "Tax" else "",
        "resourceTags/user:Name": "spotrun",
        "resourceTags/user:spotrun:run": line.run if tagged else "",
    }


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def second_generation(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The same lines with the columns of CUR 2.0: names in snake case, and one map for all tags."""
    from spotrun.bill.rows import column_name

    found: list[dict[str, Any]] = []
    for row in rows:
        columns: dict[str, Any] = {column_name(name): value for name, value in row.items() if "Tags" not in name}
        columns["resource_tags"] = {"user_name": "spotrun", "user_spotrun_run": row["resourceTags/user:spotrun:run"]}
        found.append(columns)
    return found


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """As Data Exports write it: amounts are doubles, times have no zone, tags are a map."""
    import pyarrow as pa
    from pyarrow import parquet

    doubles = {"line_item_usage_amount", "line_item_unblended_cost"}
    times = {"line_item_usage_start_date", "line_item_usage_end_date"}
    columns: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in doubles:
            columns[name] = pa.array([float(value) for value in values], pa.float64())
        elif name in times:
            naive = [datetime.fromisoformat(value).replace(tzinfo=None) for value in values]
            columns[name] = pa.array(naive, pa.timestamp("ms"))
        elif name == "resource_tags":
            columns[name] = pa.array([list(value.items()) for value in values], pa.map_(pa.string(), pa.string()))
        else:
            columns[name] = pa.array(values, pa.string())
    parquet.write_table(pa.table(columns), path)
    return path


FEED_HEAD = """#Version: 1.0
#Fields: Timestamp UsageType Operation InstanceID MyBidID MyMaxPrice MarketPrice Charge Version
"""


def spot_data_feed(lines: Iterable[Billed], places: int = 10) -> str:
    """Newer feeds write ten decimals, older ones three."""
    text = FEED_HEAD
    for line in lines:
        if line.capacity is not CapacityType.SPOT:
            continue
        moment = f"{line.start + timedelta(minutes=7, seconds=47):%Y-%m-%d %H:%M:%S} UTC"
        usd = [f"{amount:.{places}f} USD" for amount in (Decimal("2.5"), line.usd_per_hour, line.usd)]
        text += (
            "\t".join([moment, line.usage_type, "RunInstances:SV050", line.resource, "sir-pwq6nmfp", *usd, "1"]) + "\n"
        )
    return text


# -- Google Cloud ------------------------------------------------------------------------------------------------------

SHARES = {"Core running in Americas": Decimal("0.4"), "Ram running in Americas": Decimal("0.6")}
"""Compute Engine charges cores and memory apart."""


def billing_export(lines: Iterable[Billed]) -> list[dict[str, Any]]:
    return [
        export_row(
            line.resource,
            f"Spot Preemptible N1 Predefined Instance {part}",
            (line.start, line.end),
            line.seconds,
            line.usd * share,
            {"spotrun-run": line.run},
        )
        for line in lines
        for part, share in SHARES.items()
    ]


def export_row(
    name: str,
    sku: str,
    hour: tuple[datetime, datetime],
    seconds: float,
    usd: Decimal,
    labels: Mapping[str, str],
    of: str = "instances",
) -> dict[str, Any]:
    """What an instance or a disk was charged in an hour for one of its parts."""
    start, end = (f"{moment:%Y-%m-%d %H:%M:%S} UTC" for moment in hour)
    place = f"//compute.googleapis.com/projects/123456789012/zones/us-central1-a/{of}/{name}"
    return {
        "billing_account_id": "0X0X0X-0X0X0X-0X0X0X",
        "service": {"id": "6F81-5844-456A", "description": "Compute Engine"},
        "sku": {"id": "D6F2-AC8E-A3A5", "description": sku},
        "usage_start_time": start,
        "usage_end_time": end,
        "project": {"id": "acme-training", "labels": []},
        "labels": [{"key": key, "value": value} for key, value in labels.items()],
        "resource": {"name": name, "global_name": place},
        "cost": float(round(usd, 6)),
        "currency": "USD",
        "currency_conversion_rate": 1.0,
        "usage": {"amount": float(seconds), "unit": "seconds"},
        "credits": [],
        "invoice": {"month": f"{hour[0]:%Y%m}"},
        "cost_type": "regular",
    }


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_csv_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a query for a CSV selects: nested fields by name, lists as JSON text."""
    return [
        {
            "sku_description": row["sku"]["description"],
            "service_description": row["service"]["description"],
            "usage_start_time": row["usage_start_time"],
            "usage_end_time": row["usage_end_time"],
            "resource_name": row["resource"]["name"],
            "labels": json.dumps(row["labels"]),
            "cost": row["cost"],
            "currency": row["currency"],
            "credits": json.dumps(row["credits"]),
            "cost_type": row["cost_type"],
        }
        for row in rows
    ]


def stormy(**created: object) -> History:
    """Spot for 2 h 20 min through a change of price, spot lost in its first hour, on-demand for 1 h 40 min."""
    history = History(**{"billing": EC2_RULE, "simulated": False, **created})
    first = history.after(0.3).running()
    dearer = history.after(4000.25).now
    history.after(4400.5).gone(first, dearer_since=(dearer, "0.42"))
    second = history.after(20).running(price="0.41")
    history.after(1800).gone(second)
    third = history.after(5).running(ON_DEMAND, "3.6")
    history.after(6000.75).completed(None)
    history.after(9.5).gone(third, EndedBy.ITSELF)
    return history


def in_parts(rows: list[dict[str, str]], folder: Path) -> Path:
    """A report in one file for each three lines, as large ones come."""
    folder.mkdir()
    for number in range(0, len(rows), 3):
        path = write_csv(folder / f"cur-{number}.csv", rows[number : number + 3])
        path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder
