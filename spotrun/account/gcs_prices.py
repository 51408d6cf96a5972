"""
The prices of Cloud Storage by the location of a bucket: in one region, in two, or in all of a continent.

Storing and requests: https://cloud.google.com/storage/pricing, as of September 2026. Between regions Google bills by
the continents of both ends, the same for Cloud Storage and for Compute Engine, which since October 2024 pays for writes
into a bucket in another region (https://cloud.google.com/vpc/network-pricing; those tables were written down from
memory in November 2026). A bucket in several regions is billed for each GB that it copies to another one. An instance
in one of two regions reads it for free; from a multi-region, it pays the price between regions of that continent.
https://cloud.google.com/storage/docs/locations lists the regions of each location.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum

from msgspec.structs import replace

from spotrun.address import BETWEEN_REGIONS
from spotrun.run.events import Passage, StoragePrices

GCS_STANDARD = StoragePrices(
    usd_per_gb_month=Decimal("0.020"),
    usd_per_1000_puts=Decimal("0.005"),
    usd_per_1000_gets=Decimal("0.0004"),
    egress_usd_per_gb=Decimal("0.14"),
    source="GCS Standard in us-central1 (cloud.google.com/storage/pricing, 2026-11-25)",
)
"""The base prices. Traffic to a continent that is unknown here costs as much as to the dearest one."""
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
_DUAL_USD_PER_GB_MONTH, _MULTI_USD_PER_GB_MONTH = Decimal("0.044"), Decimal("0.026")
_MANY_USD_PER_1000_PUTS = Decimal("0.010")


class Continent(StrEnum):
    """A continent, as the first word of the names of its regions."""

    US = "us"
    NORTH_AMERICA = "northamerica"
    EUROPE = "europe"
    ASIA = "asia"
    AUSTRALIA = "australia"
    MIDDLE_EAST = "me"
    AFRICA = "africa"
    SOUTH_AMERICA = "southamerica"


_AMERICAN = frozenset((Continent.US, Continent.NORTH_AMERICA))
_WITHIN = {
    **dict.fromkeys((*_AMERICAN, Continent.EUROPE), Decimal("0.02")),
    **dict.fromkeys((Continent.ASIA, Continent.AUSTRALIA, Continent.MIDDLE_EAST), Decimal("0.08")),
    Continent.AFRICA: Decimal("0.11"),
    Continent.SOUTH_AMERICA: Decimal("0.14"),
}
_TO_OTHERS: Mapping[Continent, Decimal] = {
    **dict.fromkeys((*_AMERICAN, Continent.EUROPE), Decimal("0.05")),
    Continent.ASIA: Decimal("0.08"),
    Continent.AUSTRALIA: Decimal("0.10"),
    **dict.fromkeys((Continent.MIDDLE_EAST, Continent.AFRICA), Decimal("0.11")),
    Continent.SOUTH_AMERICA: Decimal("0.14"),
}
"""USD per GB between continents. The dearer end counts."""


def gcs_prices(location: str) -> StoragePrices:
    """
    Return the prices for a bucket at `location`: a region, the code of a dual- or multi-region, or two regions joined
    by BETWEEN_REGIONS; "" if the location is unknown.
    """
    if not location:
        return GCS_STANDARD
    home = _continent(_regions(location)[0] if _regions(location) else _MULTI_REGIONS.get(location, location))
    if home is None:
        return replace(GCS_STANDARD, region=location)
    prices = replace(GCS_STANDARD, region=location, between=_passages(location, home))
    if location in _MULTI_REGIONS:
        return replace(prices, usd_per_gb_month=_MULTI_USD_PER_GB_MONTH, usd_per_1000_puts=_MANY_USD_PER_1000_PUTS)
    if len(_regions(location)) > 1:
        return replace(prices, usd_per_gb_month=_DUAL_USD_PER_GB_MONTH, usd_per_1000_puts=_MANY_USD_PER_1000_PUTS)
    return prices


def usd_per_gb(one: Continent, other: Continent) -> Decimal:
    """Return the price of a GB between two different regions on these continents."""
    if one is other or {one, other} == _AMERICAN:
        return _WITHIN[one]
    return max(_TO_OTHERS[one], _TO_OTHERS[other])


def _passages(location: str, home: Continent) -> dict[str, Passage]:
    """Return the traffic prices of a bucket, by continent, and by region for the bucket's own regions."""
    regions, is_multi = _regions(location), location in _MULTI_REGIONS
    copied = _WITHIN[home] if is_multi or len(regions) > 1 else Decimal(0)
    found = {
        str(continent): Passage(usd_per_gb(home, continent), usd_per_gb(home, continent) + copied)
        for continent in Continent
    }
    if is_multi:
        found[str(home)] = Passage(_WITHIN[home], copied, is_home=True)
    found |= {region: Passage(Decimal(0), copied, is_home=True) for region in regions}
    if location == "eu":
        found |= {region: Passage(_WITHIN[home], _WITHIN[home] + copied) for region in _NOT_IN_EU}
    return found


def _regions(location: str) -> tuple[str, ...]:
    """Return the regions that a location names; () for a multi-region."""
    if location in _MULTI_REGIONS:
        return ()
    return DUAL_REGIONS.get(location) or tuple(location.split(BETWEEN_REGIONS))


def _continent(region: str) -> Continent | None:
    first = region.partition("-")[0]
    return Continent(first) if first in Continent._value2member_map_ else None
