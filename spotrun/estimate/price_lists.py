"""
Reads the list prices of services that spotrun does not rent: TPUs, SageMaker training jobs, Colab.

The prices in tpu.json, sagemaker.json and colab.json were read on 2026-11-27 from dated sources. They are list prices
in dollars, without tax. Some are years old, so check the current price before you rent anything.

Two kinds of prices are left out: prices without a dated source (for example, the price of ml.p4d.24xlarge), and TPU
spot prices that are above the on-demand price in the same source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches

import msgspec

from spotrun.run.price_tables import price_tables
from spotrun.units import Unreadable, plain_usd, shown


class ListPrice(msgspec.Struct, frozen=True, kw_only=True):
    """
    A list price per hour; or, if `hours_per_month` is given, a monthly fee that buys at most that many hours. `what`
    says what the price buys, `as_of` is the price's date, and `source` is the page that publishes it.
    `spot_usd_per_hour` is None if no spot price below the on-demand price is known.
    """

    type: str
    region: str = ""
    what: str
    as_of: str
    source: str
    usd_per_hour: Decimal | None = None
    spot_usd_per_hour: Decimal | None = None
    usd_per_month: Decimal | None = None
    hours_per_month: Decimal | None = None


def find_price(table: str, type_name: str, region: str | None = None) -> ListPrice:
    """
    Return a price from a table. If `region` is None, return the price in the first region of the table.

    Raises:
        Unreadable: there is no table of this name, or the price is not in it.
    """
    prices = PRICE_LISTS.get(table)
    if prices is None:
        raise Unreadable(f"there is no table {shown(table)!r}", f"tables: {', '.join(PRICE_LISTS)}")
    of_type = {price.region: price for price in prices if price.type == type_name}
    if not of_type:
        known = tuple(dict.fromkeys(price.type for price in prices))
        near = get_close_matches(type_name[:100], known, 3, cutoff=0.4) or known
        raise Unreadable(f"table {table} has no price of {shown(type_name)!r}", f"similar names: {', '.join(near)}")
    if region is not None and region not in of_type:
        regions = ", ".join(filter(None, of_type)) or "write no region: its price is the same everywhere"
        raise Unreadable(f"table {table} has no price of {type_name} in {shown(region)}", f"known: {regions}")
    return of_type[region] if region is not None else next(iter(of_type.values()))


def _by_place(file: str) -> Iterator[ListPrice]:
    """Yield the prices in a file. The key of each price is `TYPE REGION`."""
    for table in price_tables(__package__, file):
        for row, usd in table.prices.items():
            type_name, _, region = row.partition(" ")
            yield ListPrice(
                type=type_name,
                region=region,
                what=table.what,
                as_of=table.as_of,
                source=table.source,
                usd_per_hour=usd,
                spot_usd_per_hour=table.spot.get(row),
            )


def _colab() -> Iterator[ListPrice]:
    """
    Yield the prices of each GPU on Colab. Colab sells compute units, and each GPU uses a certain number of units per
    hour. These numbers were read in California. Colab may show other numbers elsewhere or later.
    """
    units, plans, included, alone = price_tables(__package__, "colab.json")
    source = f"{units.source} (units an hour), {plans.source} (the prices on Colab's page on {plans.as_of})"
    for gpu, per_hour in units.prices.items():
        for plan, usd in plans.prices.items():
            yield ListPrice(
                type=f"{plan} {gpu}",
                what=f"{included.prices[plan]} compute units, and an hour uses {per_hour} of them",
                as_of=units.as_of,
                source=source,
                usd_per_month=usd,
                hours_per_month=included.prices[plan] / per_hour,
            )
        for name, usd in alone.prices.items():
            yield ListPrice(
                type=f"{name} {gpu}",
                what=f"{per_hour} compute units at ${plain_usd(usd)} a hundred",
                as_of=units.as_of,
                source=source,
                usd_per_hour=per_hour * (usd / 100),
            )


PRICE_LISTS: Mapping[str, tuple[ListPrice, ...]] = {
    "tpu": tuple(_by_place("tpu.json")),
    "sagemaker": tuple(_by_place("sagemaker.json")),
    "colab": tuple(_colab()),
}
"""The price lists, keyed by name. If a study names no region, the price is the one in the first row for the type."""
