"""Reads a region's spot price history from EC2, and reports the rows that it cannot read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from spotrun.clouds.aws.calls import Region
from spotrun.instance import PriceSegment

LINUX = "Linux/UNIX"
KEPT_BY_EC2 = timedelta(days=90)
"""
Maximum age of spot prices: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-instances-history.html
"""


class SpotPool(NamedTuple):
    instance_type: str
    zone: str


class SpotPrices(NamedTuple):
    """
    The spot prices of each pool since a given time, oldest first. The first of them was already valid at that time.

    A pool without a price is absent. A price may be above the on-demand price. `unreadable` describes the rows that
    lack a pool, a time or a positive price.
    """

    segments: Mapping[SpotPool, list[PriceSegment]]
    unreadable: tuple[str, ...]


def spot_prices(region: Region, types: Sequence[str], since: datetime) -> SpotPrices:
    """
    Return the spot prices from `since` on: those of `types` or, if it is empty, of all types. EC2 keeps prices for
    KEPT_BY_EC2.
    """
    asked: dict[str, Any] = {"ProductDescriptions": [LINUX], "StartTime": since}
    if types:
        asked["InstanceTypes"] = list(types)
    return _read(region.pages(region.ec2, "describe_spot_price_history", "SpotPriceHistory", **asked))


def _read(rows: Iterable[Mapping[str, Any]]) -> SpotPrices:
    segments: dict[SpotPool, list[PriceSegment]] = defaultdict(list)
    unreadable = []
    for row in rows:
        read = _read_row(row)
        if read is None:
            unreadable.append(_in_words(row))
        else:
            segments[read[0]].append(read[1])
    for found in segments.values():
        found.sort(key=lambda segment: segment.since)
    return SpotPrices(dict(segments), tuple(unreadable))


def _read_row(row: Mapping[str, Any]) -> tuple[SpotPool, PriceSegment] | None:
    pool = SpotPool(row.get("InstanceType", ""), row.get("AvailabilityZone", ""))
    try:
        since = row["Timestamp"].astimezone(UTC)
        segment = PriceSegment(since=since, usd_per_hour=Decimal(row["SpotPrice"]))
    except (KeyError, InvalidOperation, ValueError):
        return None
    return (pool, segment) if all(pool) and segment.usd_per_hour > 0 else None


def _in_words(row: Mapping[str, Any]) -> str:
    zone, price = row.get("AvailabilityZone") or "no zone", row.get("SpotPrice") or "no price"
    return f"{row.get('InstanceType') or 'no type'} in {zone}: {price}"
