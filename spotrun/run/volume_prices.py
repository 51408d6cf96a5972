"""
List prices of an instance's disk and public address in each region, read from volume_prices.json. That file also has
the dates of the prices.

For EC2, the disk is a gp3 volume at its baseline speed; a higher speed would cost extra. The prices were checked
against those of gp2: in each region, gp3 costs four fifths as much.

For Compute Engine, the disk is pd-balanced, or, for machine families without Persistent Disk, hyperdisk-balanced at its
baseline speed, which costs nothing extra (https://cloud.google.com/compute/docs/disks/hd-types/hyperdisk-balanced).
Where the table has no price for hyperdisk-balanced, it counts as pd-balanced, which costs more.

Since February 2024, a public IPv4 address costs the same in all regions. On a spot instance of Google, it costs half as
much.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Literal, NamedTuple

from spotrun.run.price_tables import PriceTable, price_table

GOOGLES_MONTH_HOURS = 730
"""Number by which Google divides a monthly price to get an hourly price."""
ANY_REGION = "any region"
"""Key of the price of an address in the table. An address costs the same in all regions, so there is only this key."""


def list_prices(
    what: Literal["gp3", "pd-balanced", "hyperdisk-balanced", "address of EC2", "address of Compute Engine"],
) -> PriceTable:
    return price_table(__package__, "volume_prices.json", what)


class VolumePrice(NamedTuple):
    """The price of a volume, and the region (`where`) that has this price."""

    usd_per_gib_month: Decimal
    where: str


def volume_price(table: Mapping[str, Decimal], regions: Collection[str]) -> VolumePrice:
    """
    Return the price in the most expensive of `regions`, so that a budget based on it is enough in each of them. If any
    of the regions is not in the table, return the highest price in the table.
    """
    unknown = sorted(set(regions) - table.keys())
    dearest = max(table if unknown else regions, key=table.__getitem__)
    where = (
        f"{dearest}, the most expensive known region, as there is no price for {', '.join(unknown)}"
        if unknown
        else dearest
    )
    return VolumePrice(table[dearest], where)
