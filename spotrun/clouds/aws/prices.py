"""Prices as EC2 tells them now: the spot price history of a region, and its on-demand price list."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from spotrun.clouds.aws.calls import Region
from spotrun.instance import PriceSegment

LINUX = "Linux/UNIX"


class SpotPool(NamedTuple):
    instance_type: str
    zone: str


def spot_prices(region: Region, types: Sequence[str], since: datetime) -> dict[SpotPool, list[PriceSegment]]:
    """
    The price of each pool from `since` on, oldest first: the one in effect at `since`, then each change.

    EC2 keeps 90 days. A pool that it tells no price of is absent.
    """
    asked: dict[str, Any] = {"ProductDescriptions": [LINUX], "StartTime": since}
    if types:
        asked["InstanceTypes"] = list(types)
    rows = region.pages(region.ec2, "describe_spot_price_history", "SpotPriceHistory", **asked)
    found: dict[SpotPool, list[PriceSegment]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["Timestamp"]):
        segment = PriceSegment(since=row["Timestamp"].astimezone(UTC), usd_per_hour=Decimal(row["SpotPrice"]))
        found[SpotPool(row["InstanceType"], row["AvailabilityZone"])].append(segment)
    return dict(found)


def on_demand_prices(region: Region, types: Sequence[str]) -> dict[str, Decimal]:
    """USD per hour of each type: Linux, shared hardware, nothing preinstalled. Types without a price are absent."""
    wanted = {
        "regionCode": region.name,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    found: dict[str, Decimal] = {}
    for chosen in types or (None,):
        facts = wanted if chosen is None else {**wanted, "instanceType": chosen}
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in facts.items()]
        for text in region.pages(region.pricing, "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters):
            found.update(_price_of(json.loads(text)))
    return found


def _price_of(product: dict[str, Any]) -> dict[str, Decimal]:
    """Type and price of one product; nothing where it has no hourly price above 0."""
    terms = product.get("terms", {}).get("OnDemand", {}).values()
    prices = [
        Decimal(dimension["pricePerUnit"].get("USD", "0"))
        for term in terms
        for dimension in term["priceDimensions"].values()
        if dimension["unit"] == "Hrs"
    ]
    above = [price for price in prices if price > 0]
    return {product["product"]["attributes"]["instanceType"]: min(above)} if above else {}
