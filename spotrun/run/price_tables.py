"""
Reads tables of published prices from JSON files. The files are in the packages that use the prices.

Each file is a list of tables, and each table has the fields of `PriceTable`. Prices are strings, so that no digit is
lost.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Annotated

from msgspec import Meta, Struct, json


class PriceTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Prices in `unit`, as published at `source`. `as_of` is the day, the month or the year of publication.

    The keys of `prices` name the priced items. `spot` contains spot prices; each of its keys is also a key of `prices`.
    The table is valid in `regions`. `regions` is empty if the keys of `prices` are themselves regions, or if the prices
    are the same everywhere.
    """

    what: Annotated[str, Meta(min_length=1)]
    as_of: Annotated[str, Meta(pattern=r"^20\d\d(-[01]\d(-[0-3]\d)?)?$")]
    source: Annotated[str, Meta(pattern="https://")]
    unit: Annotated[str, Meta(min_length=1)]
    regions: tuple[str, ...] = ()
    prices: Annotated[dict[str, Decimal], Meta(min_length=1)]
    spot: dict[str, Decimal] = {}

    def __post_init__(self) -> None:
        for name, price in (*self.prices.items(), *self.spot.items()):
            if not (price.is_finite() and price > 0):
                raise ValueError(f"{name} has the price {price}")
        if unknown := self.spot.keys() - self.prices.keys():
            raise ValueError(f"{', '.join(sorted(unknown))} have only a spot price")


@cache
def price_tables(package: str, file: str) -> tuple[PriceTable, ...]:
    return json.decode(files(package).joinpath(file).read_bytes(), type=tuple[PriceTable, ...])


def price_table(package: str, file: str, what: str) -> PriceTable:
    """Return the table named `what` in a file with several tables."""
    (found,) = (table for table in price_tables(package, file) if table.what == what)
    return found
