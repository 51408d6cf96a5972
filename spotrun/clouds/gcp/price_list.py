"""
Reads the prices of a region's instance types from the Cloud Billing Catalog, or, if that fails, from a table in
spotrun.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from decimal import Decimal

import msgspec

from spotrun.clouds.gcp.calls import BILLING, Call, Google
from spotrun.clouds.gcp.machine import Machine
from spotrun.clouds.gcp.sku_prices import PartPrices, PriceScope, part_prices, usd_per_hour
from spotrun.clouds.list_prices import ListPrice, shipped_prices
from spotrun.errors import CloudError
from spotrun.offering import RENTED, CapacityType

COMPUTE_ENGINE = "services/6F81-5844-456A"
"""The service whose SKUs are read: https://cloud.google.com/skus."""
DISAGREEMENT = Decimal("0.02")
"""The smallest relative difference between the live and the shipped price that is reported."""
_FIELDS = (
    "nextPageToken,skus(description,category(resourceGroup,usageType),serviceRegions,"
    "pricingInfo(pricingExpression(usageUnit,tieredRates(startUsageAmount,unitPrice))))"
)
"""
The fields to request. They are only a third of each SKU's data. This matters because there are tens of thousands of
SKUs.
"""
_SKUS = Call(BILLING, "GET", f"v1/{COMPUTE_ENGINE}/skus", {"fields": _FIELDS})


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """
    Prices in one region, keyed by type. A type that neither the catalog nor the shipped table lists is absent. `prices`
    are on-demand prices. `spot` are spot prices, which are used for types whose price history is unknown. `trouble` is
    the reason why the catalog was not read. `remarks` report prices in the catalog that differ greatly from those in
    the shipped table.
    """

    prices: Mapping[str, ListPrice]
    spot: Mapping[str, ListPrice]
    trouble: str | None = None
    remarks: tuple[str, ...] = ()


def read_part_prices(google: Google, regions: Collection[str]) -> PartPrices:
    """
    Read the prices of all machine parts in `regions`. This takes dozens of requests, even for one region.

    Raises:
        CloudError: the catalog refuses the call, is down, or lists no known machine part.
    """
    pages = google.pages("read Compute Engine's prices", _SKUS)
    found = part_prices((sku for page in pages for sku in page.get("skus", ())), regions)
    if not found:
        raise CloudError(f"the Cloud Billing Catalog has no prices for vCPUs, memory or GPUs in {', '.join(regions)}")
    return found


def read_price_list(
    region: str, machines: Collection[Machine], parts: Callable[[], PartPrices], now: datetime
) -> PriceList:
    """
    Return prices in USD per hour: those of `machines` from the catalog, and those of all other machines from the
    shipped table. `parts` returns the prices of machine parts, from the catalog or from a cache.

    If `parts` fails, return only prices from the shipped table. They may be a few months old, but they still show which
    types are cheaper than others.
    """
    shipped = {market: shipped_prices(__package__, region, market) for market in RENTED}
    try:
        known, trouble = parts(), None
    except CloudError as error:
        known, trouble = {}, error.message
    live = {market: _summed(machines, PriceScope(market, region), known, now) for market in RENTED}
    return PriceList(
        prices={**shipped[CapacityType.ON_DEMAND], **live[CapacityType.ON_DEMAND]},
        spot={**shipped[CapacityType.SPOT], **live[CapacityType.SPOT]},
        trouble=trouble,
        remarks=tuple(_far_apart(region, live[CapacityType.ON_DEMAND], shipped[CapacityType.ON_DEMAND])),
    )


def _summed(machines: Collection[Machine], place: PriceScope, parts: PartPrices, now: datetime) -> dict[str, ListPrice]:
    source = f"Cloud Billing Catalog, {now:%Y-%m-%d}"
    sums = {machine.name: usd_per_hour(machine, place, parts) for machine in machines}
    return {kind: ListPrice(price, source) for kind, price in sums.items() if price is not None}


def _far_apart(region: str, live: Mapping[str, ListPrice], shipped: Mapping[str, ListPrice]) -> Iterator[str]:
    """
    Report on-demand prices that differ greatly between the catalog and the shipped table. Spot prices are not compared,
    because they change all the time.
    """
    for kind in sorted(live.keys() & shipped.keys()):
        now, before = live[kind], shipped[kind]
        if abs(now.usd_per_hour - before.usd_per_hour) > DISAGREEMENT * before.usd_per_hour:
            yield (
                f"{kind} in {region} costs ${now.usd_per_hour:.4f} an hour by the {now.source}, but "
                f"${before.usd_per_hour:.4f} by the {before.source}"
            )
