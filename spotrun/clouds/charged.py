"""Computes the hourly prices at which an instance was billed, from the price history of its pool."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from spotrun.clouds.driver import CloudDriver
from spotrun.instance import PriceSegment
from spotrun.offering import CapacityType, Offering


def charged(
    prices: Sequence[PriceSegment], offering: Offering, since: datetime, until: datetime | None
) -> tuple[PriceSegment, ...]:
    """
    Return the prices from `since` to `until`: the price at `since`, then each later price. `prices` is the price
    history of the instance's pool, oldest first. If the price at `since` is unknown, the result begins with the first
    later price. It does not begin with a price of 0, which would make the bill too low.
    """
    told = offering.price_usd_per_hour
    at_launch = (PriceSegment(since=since, usd_per_hour=told),) if told else ()
    if offering.capacity_type is CapacityType.ON_DEMAND:
        return at_launch
    before = [each for each in prices if each.since <= since]
    first = (PriceSegment(since=since, usd_per_hour=before[-1].usd_per_hour),) if before else at_launch
    later = [each for each in prices if each.since > since and (until is None or each.since < until)]
    return (*first, *later)


def spot_prices(driver: CloudDriver, offering: Offering, since: datetime, until: datetime) -> tuple[PriceSegment, ...]:
    """
    Return the prices from `since` to `until` of an instance that its cloud no longer lists; () if the instance is not a
    spot instance, or if the cloud's price history is unknown.
    """
    spot = offering.capacity_type is CapacityType.SPOT
    history = driver.spot_history(offering, since) if spot else ()
    return charged(history, offering, since, until) if history else ()
