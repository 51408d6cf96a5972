"""List prices of instance types. They are part of spotrun, in the on_demand.json of each cloud's package."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from spotrun.offering import CapacityType
from spotrun.run.price_tables import PriceTable, price_tables


class ListPrice(msgspec.Struct, frozen=True):
    """The price of one type. `source` names the list and its date."""

    usd_per_hour: Decimal
    source: str


def shipped_tables(package: str) -> tuple[PriceTable, ...]:
    return price_tables(package, "on_demand.json")


def shipped_prices(package: str, region: str, market: CapacityType = CapacityType.ON_DEMAND) -> dict[str, ListPrice]:
    """
    Return the price of each type in a region from the table that is part of spotrun. Spot prices may change daily, so
    those in the table are only a rough guide.
    """
    return {
        kind: ListPrice(price, f"table shipped with spotrun, {table.as_of}")
        for table in shipped_tables(package)
        if region in table.regions
        for kind, price in (table.spot if market is CapacityType.SPOT else table.prices).items()
    }
