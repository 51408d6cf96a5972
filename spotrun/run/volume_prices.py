"""
List prices, with their dates, of an instance's disk and public address by region: volume_prices.json.

For EC2, gp3 is priced with the included speed only. In each region, gp3 costs four fifths as much as gp2; the table was
checked with this ratio. Compute Engine's hyperdisk-balanced is cheaper than pd-balanced: $0.08 in us-central1. A public
IPv4 address has cost the same everywhere since February 2024, and half as much on Google's spot instances.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Literal, NamedTuple

from spotrun.run.price_tables import PriceTable, price_table

GOOGLES_MONTH_HOURS = 730
"""Google's divisor from a price per month to a price per hour."""
ANY_REGION = "any region"
"""The row of an address, whose price is the same in all regions."""


def list_prices(what: Literal["gp3", "pd-balanced", "address of EC2", "address of Compute Engine"]) -> PriceTable:
    return price_table(__package__, "volume_prices.json", what)


class VolumePrice(NamedTuple):
    """The price of a volume, which is the price in the region `where`."""

    usd_per_gib_month: Decimal
    where: str


def volume_price(table: Mapping[str, Decimal], regions: Collection[str]) -> VolumePrice:
    """
    Return the price in the most expensive of `regions`, so that a budget is enough in all of them. A region that the
    table lacks counts as the most expensive in the table.
    """
    unknown = sorted(set(regions) - table.keys())
    dearest = max(table if unknown else regions, key=table.__getitem__)
    where = f"{dearest}, the dearest known, as there is no price for {', '.join(unknown)}" if unknown else dearest
    return VolumePrice(table[dearest], where)
