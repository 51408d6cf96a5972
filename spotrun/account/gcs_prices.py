"""
The prices of Cloud Storage. They depend on the bucket's location: one region, two regions, or a whole continent.

The amounts are in storage_prices.json. The price of traffic between two regions depends on the continents in which they
are. Reading from a bucket (billed by Cloud Storage) and writing to it (billed by Compute Engine, since October 2024)
cost the same. If a bucket spans several regions, Google also bills each GB that it copies between these regions.
Reading from a dual-region bucket is free for an instance in one of its two regions. Reading from a multi-region bucket
costs as much as traffic between two regions of its continent. https://cloud.google.com/storage/docs/locations lists
each location's regions.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum

from msgspec import convert
from msgspec.structs import replace

from spotrun.address import BETWEEN_REGIONS
from spotrun.run.events import Passage, StoragePrices
from spotrun.run.price_tables import PriceTable, price_table

DUAL_REGIONS = {
    "asia1": ("asia-northeast1", "asia-northeast2"),
    "eur4": ("europe-north1", "europe-west4"),
    "eur5": ("europe-west1", "europe-west2"),
    "eur7": ("europe-west2", "europe-west3"),
    "eur8": ("europe-west3", "europe-west6"),
    "nam4": ("us-central1", "us-east1"),
}
_MULTI_REGIONS = {"asia": "asia", "eu": "europe", "us": "us"}
_NOT_IN_EU = ("europe-west2", "europe-west6")


class Continent(StrEnum):
    """A continent. Its value is the first word of its regions' names."""

    US = "us"
    NORTH_AMERICA = "northamerica"
    EUROPE = "europe"
    ASIA = "asia"
    AUSTRALIA = "australia"
    MIDDLE_EAST = "me"
    AFRICA = "africa"
    SOUTH_AMERICA = "southamerica"


_AMERICAN = frozenset((Continent.US, Continent.NORTH_AMERICA))


def list_prices(what: str) -> PriceTable:
    return price_table(__package__, "storage_prices.json", what)


def standard_prices(what: str) -> StoragePrices:
    table = list_prices(what)
    source = f"{what} ({table.source.removeprefix('https://')}, {table.as_of})"
    return convert({**table.prices, "source": source}, StoragePrices)


def gcs_prices(location: str) -> StoragePrices:
    """
    Return the prices for a bucket at `location`, or the default prices if `location` is "" (unknown).

    A location is a region, the code of a dual- or multi-region, or two regions joined by BETWEEN_REGIONS. If the price
    list lacks a continent, traffic to it is priced like traffic to the most expensive continent.
    """
    prices = standard_prices("GCS Standard in us-central1")
    if not location:
        return prices
    home = _continent(_regions(location)[0] if _regions(location) else _MULTI_REGIONS.get(location, location))
    if home is None:
        return replace(prices, region=location)
    return replace(prices, region=location, between=_passages(location, home), **_of_several(location))


def _of_several(location: str) -> Mapping[str, Decimal]:
    """
    Return the prices that differ from those of a bucket in one region, if the bucket spans several regions. If it is in
    one region, return {}.
    """
    if location in _MULTI_REGIONS:
        return list_prices("GCS Standard in all of a continent").prices
    return list_prices("GCS Standard in two regions").prices if len(_regions(location)) > 1 else {}


def usd_per_gb(one: Continent, other: Continent) -> Decimal:
    """
    Return the price per GB of traffic between two different regions, one on each of these continents. If the two
    continents have different prices, return the higher one.
    """
    if one is other or {one, other} == _AMERICAN:
        return _within(one)
    between = list_prices("Google's traffic between continents").prices
    return max(between[one], between[other])


def _within(continent: Continent) -> Decimal:
    return list_prices("Google's traffic between regions of a continent").prices[continent]


def _passages(location: str, home: Continent) -> dict[str, Passage]:
    """
    Return the prices of traffic between a bucket and an instance. `home` is the bucket's continent.

    Most prices are keyed by the instance's continent. Some regions have an entry of their own, because their price
    differs from that of their continent: the bucket's own regions, and, for the location `eu`, the European regions
    outside `eu`.
    """
    regions, is_multi = _regions(location), location in _MULTI_REGIONS
    copied = _within(home) if is_multi or len(regions) > 1 else Decimal(0)
    found = {
        str(continent): Passage(usd_per_gb(home, continent), usd_per_gb(home, continent) + copied)
        for continent in Continent
    }
    if is_multi:
        found[str(home)] = Passage(_within(home), copied, is_home=True)
    found |= {region: Passage(Decimal(0), copied, is_home=True) for region in regions}
    if location == "eu":
        found |= {region: Passage(_within(home), _within(home) + copied) for region in _NOT_IN_EU}
    return found


def _regions(location: str) -> tuple[str, ...]:
    """Return the one or two regions of a bucket's location; () for a multi-region, which has no list of regions."""
    if location in _MULTI_REGIONS:
        return ()
    return DUAL_REGIONS.get(location) or tuple(location.split(BETWEEN_REGIONS))


def _continent(region: str) -> Continent | None:
    first = region.partition("-")[0]
    return Continent(first) if first in Continent._value2member_map_ else None
