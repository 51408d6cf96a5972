"""
Reads a region's on-demand prices of instance types from the Price List API or, if that fails, from spotrun's own table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.list_prices import ListPrice, shipped_prices
from spotrun.errors import CloudError


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """
    Prices in one region. A type that neither the API nor spotrun's own table lists is absent. `trouble` is the reason
    why the API's prices could not be read.
    """

    prices: Mapping[str, ListPrice]
    trouble: str | None = None


def read_price_list(region: Region, types: Sequence[str], now: datetime) -> PriceList:
    """
    Return the USD per hour of each type, or of every type if `types` is empty.

    If AWS denies the request or the request fails, return the prices in spotrun's own table, and the reason as
    `trouble`. Even prices that are a few months old show which types are cheaper than others.
    """
    shipped = shipped_prices(__package__, region.name)
    try:
        live = _live(region, types)
    except CloudError as error:
        return PriceList(prices=shipped, trouble=error.message)
    source = f"AWS Price List API, {now:%Y-%m-%d}"
    return PriceList(prices={**shipped, **{kind: ListPrice(price, source) for kind, price in live.items()}})


def _live(region: Region, types: Sequence[str]) -> dict[str, Decimal]:
    """Read the current prices from the API: for Linux, on shared hardware, without preinstalled software."""
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
    """Return a product's type and price; {} if the product has no readable hourly price above 0."""
    try:
        kind = product["product"]["attributes"]["instanceType"]
        terms = product["terms"]["OnDemand"].values()
        dimensions = [dimension for term in terms for dimension in term["priceDimensions"].values()]
        prices = [Decimal(each["pricePerUnit"]["USD"]) for each in dimensions if each["unit"] == "Hrs"]
    except (KeyError, InvalidOperation):
        return {}
    above = [price for price in prices if price.is_finite() and price > 0]
    return {kind: min(above)} if above else {}
