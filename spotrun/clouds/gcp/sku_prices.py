"""
Reads Compute Engine's prices for the parts of a machine from the Cloud Billing Catalog.

A machine's price is the sum of the prices of its cores, memory, GPUs and included local SSDs. Each of these parts has a
SKU in each region (https://cloud.google.com/compute/vm-instance-pricing). Only the SKU's description shows which part
it is for, so a SKU with an unexpected description, group or unit is ignored: https://cloud.google.com/skus.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from spotrun.clouds.gcp.amounts import usd
from spotrun.clouds.gcp.machine import LOCAL_SSD_GIB, MIB_PER_GIB, Machine
from spotrun.offering import CapacityType
from spotrun.run.billing import to_nano
from spotrun.run.volume_prices import GOOGLES_MONTH_HOURS

_MARKETS = {"OnDemand": CapacityType.ON_DEMAND, "Preemptible": CapacityType.SPOT}
_FAMILIES = {
    "A2": "a2",
    "A3": "a3",
    "C2D AMD": "c2d",
    "C3": "c3",
    "C3D": "c3d",
    "C4": "c4",
    "E2": "e2",
    "G2": "g2",
    "G4": "g4",
    "N1 Predefined": "n1",
    "N2": "n2",
    "N2D AMD": "n2d",
    "N4": "n4",
    "T2D AMD": "t2d",
}
_GPUS = {
    "Nvidia H100 80GB GPU": "nvidia-h100-80gb",
    "Nvidia H100 80GB Mega GPU": "nvidia-h100-mega-80gb",
    "Nvidia H100 80GB Plus GPU": "nvidia-h100-mega-80gb",
    "Nvidia L4 GPU": "nvidia-l4",
    "Nvidia Tesla A100 80GB GPU": "nvidia-a100-80gb",
    "Nvidia Tesla A100 GPU": "nvidia-tesla-a100",
    "RTX 6000 96GB": "nvidia-rtx-pro-6000",
}

What = Literal["core", "memory", "gpu", "local_ssd"]


class Part(NamedTuple):
    """A part of a machine. `of` is a family, or Google's name of a GPU; "" stands for a local SSD of any family."""

    what: What
    of: str


class Wording(NamedTuple):
    """
    Recognises the SKUs of one kind of part by description, resource group and unit. In the regular expression `words`,
    the group `of` matches the part's name in the description. `names` maps this name to the part's `Part.of`.
    """

    what: What
    words: re.Pattern[str]
    groups: frozenset[str]
    unit: str
    names: Mapping[str, str]


class PriceScope(NamedTuple):
    """The market and the region in which a price applies."""

    market: CapacityType
    region: str


PartPrices = Mapping[tuple[Part, PriceScope], Decimal | None]
"""Prices in USD per hour of one core, one GiB or one GPU. None if two SKUs contradict each other."""

_WORDINGS = (
    Wording(
        "core",
        re.compile(r"(?P<spot>Spot Preemptible )?(?P<of>.+) Instance Core running in .+"),
        frozenset(("CPU", "N1Standard")),
        "h",
        _FAMILIES,
    ),
    Wording(
        "memory",
        re.compile(r"(?P<spot>Spot Preemptible )?(?P<of>.+) Instance Ram running in .+"),
        frozenset(("RAM", "N1Standard")),
        "GiBy.h",
        _FAMILIES,
    ),
    Wording(
        "gpu",
        re.compile(r"(?P<of>.+?)(?P<spot> attached to Spot Preemptible VMs)? running in .+"),
        frozenset(("GPU",)),
        "h",
        _GPUS,
    ),
    Wording(
        "local_ssd",
        re.compile(r"(?P<spot>Spot Preemptible )?(?P<of>.+) Instance Local SSD running in .+"),
        frozenset(("LocalSSD",)),
        "GiBy.mo",
        _FAMILIES,
    ),
    Wording(
        "local_ssd",
        re.compile(r"(?P<of>SSD backed Local Storage)(?P<spot> attached to Spot Preemptible VMs)?( (running )?in .+)?"),
        frozenset(("LocalSSD",)),
        "GiBy.mo",
        {"SSD backed Local Storage": ""},
    ),
)


def part_prices(skus: Iterable[Mapping[str, Any]], regions: Collection[str]) -> PartPrices:
    """Return the prices in `regions` of all parts that these SKUs cover."""
    found: dict[tuple[Part, PriceScope], Decimal | None] = {}
    for sku in skus:
        for what, price in _read(sku, regions):
            found[what] = price if found.setdefault(what, price) == price else None
    return found


def usd_per_hour(machine: Machine, place: PriceScope, prices: PartPrices) -> Decimal | None:
    """Return the sum of the prices of a machine's parts; None if a part's amount or price is uncertain."""
    if not machine.is_told_whole:
        return None
    total = Decimal(0)
    for part, amount in _parts(machine):
        price = _price(part, place, prices)
        if price is None:
            return None
        total += amount * price
    return to_nano(total)


def _parts(machine: Machine) -> Iterator[tuple[Part, Decimal]]:
    yield Part("core", machine.family), Decimal(machine.cpus)
    yield Part("memory", machine.family), Decimal(machine.memory_mib) / MIB_PER_GIB
    if machine.accelerators:
        yield Part("gpu", machine.accelerator), Decimal(machine.accelerators)
    if machine.local_ssds:
        yield Part("local_ssd", machine.family), Decimal(machine.local_ssds * LOCAL_SSD_GIB)


def _price(part: Part, place: PriceScope, prices: PartPrices) -> Decimal | None:
    """
    Return the price of a part. For a local SSD, this is the price for its family; if there is none, the price for any
    family.
    """
    if part.what == "local_ssd" and (part, place) not in prices:
        part = Part("local_ssd", "")
    return prices.get((part, place))


def _read(sku: Mapping[str, Any], regions: Collection[str]) -> Iterator[tuple[tuple[Part, PriceScope], Decimal]]:
    category = sku.get("category", {})
    market = _MARKETS.get(category.get("usageType", ""))
    here = [region for region in sku.get("serviceRegions", ()) if region in regions]
    if market is None or not here:
        return
    for wording in _WORDINGS:
        words = wording.words.fullmatch(sku.get("description", ""))
        if words is None or words["of"] not in wording.names or category.get("resourceGroup") not in wording.groups:
            continue
        price = _hourly(sku, wording.unit)
        if price is not None and (words["spot"] is not None) == (market is CapacityType.SPOT):
            part = Part(wording.what, wording.names[words["of"]])
            yield from (((part, PriceScope(market, region)), price) for region in here)


def _hourly(sku: Mapping[str, Any], unit: str) -> Decimal | None:
    """Return a SKU's newest price per hour; None if the price depends on the amount used, or is not above 0."""
    newest: Mapping[str, Any] = next(iter(reversed(sku.get("pricingInfo", []))), {})
    expression = newest.get("pricingExpression", {})
    rates = expression.get("tieredRates", [])
    price = usd(rates[0].get("unitPrice")) if len(rates) == 1 and expression.get("usageUnit") == unit else None
    if price is None or price <= 0:
        return None
    return price / GOOGLES_MONTH_HOURS if unit.endswith(".mo") else price
