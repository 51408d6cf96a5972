"""A cloud's prices for its offerings, now and in the past."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from spotrun.instance import PriceSegment
from spotrun.market.accelerators import peak_tflops
from spotrun.market.price_history import PriceRange, price_range
from spotrun.offering import Offering

LOOKED_BACK = timedelta(days=90)
"""The age up to which EC2 keeps its past spot prices."""


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """
    One offering with its prices, oldest first.

    `on_demand_usd_per_hour` is the on-demand price of the type in its region, None if unknown. `room` is how many more
    instances of this offering the account's quota allows; None if the quota could not be read. `interruption_band` is a
    range that the cloud publishes: the share of spot instances of this type that were interrupted in the previous
    month. It is None if the cloud does not publish the range.
    """

    offering: Offering
    history: tuple[PriceSegment, ...]
    on_demand_usd_per_hour: Decimal | None
    room: int | None = None
    interruption_band: str | None = None

    def over(self, window: timedelta, now: datetime) -> PriceRange | None:
        return price_range(self.history, now - window, now)

    @property
    def saved(self) -> float | None:
        """
        The saving as a share of the on-demand price. It is 0 if this offering costs the same as on-demand, negative if
        this offering costs more, and None if the on-demand price is unknown.
        """
        if not self.on_demand_usd_per_hour:
            return None
        return float(1 - self.offering.price_usd_per_hour / self.on_demand_usd_per_hour)

    @property
    def usd_per_pflops_hour(self) -> Decimal | None:
        """
        The price of 10^15 operations a second for one hour, at the accelerators' peak speed
        (spotrun.market.accelerators); None if the peak speed is unknown.
        """
        peak = peak_tflops(self.offering.accelerators)
        return None if peak is None else self.offering.price_usd_per_hour * 1000 / Decimal(str(peak))


class Quotes(msgspec.Struct, frozen=True, kw_only=True):
    """
    A cloud's quotes at one time. `notes` are sentences for the user about anything that could not be read or looks
    wrong.
    """

    at: datetime
    quotes: tuple[Quote, ...]
    notes: tuple[str, ...] = ()


def cheapest_zones(quotes: tuple[Quote, ...]) -> set[Offering]:
    """
    Return the cheapest offering for each combination of instance type and capacity type. If several are equally cheap,
    all of them are included.
    """
    lowest: dict[tuple[str, str], Decimal] = {}
    for quote in quotes:
        key = (quote.offering.instance_type, quote.offering.capacity_type)
        lowest[key] = min(quote.offering.price_usd_per_hour, lowest.get(key, Decimal("Infinity")))
    offerings = (quote.offering for quote in quotes)
    return {each for each in offerings if each.price_usd_per_hour == lowest[each.instance_type, each.capacity_type]}
