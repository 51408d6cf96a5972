"""
Reads a region's current and past spot prices. They are the same in all of the region's zones, and change at most once a
day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from spotrun.clouds.gcp.amounts import usd
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.capacity_history import histories
from spotrun.clouds.gcp.moments import moment
from spotrun.instance import PriceSegment

KEPT_BY_GOOGLE = timedelta(days=365)
"""Maximum age of spot prices: https://cloud.google.com/compute/docs/instances/view-spot-preemption-price"""


class SpotPrices(NamedTuple):
    """
    The prices of each type at `read_at`, oldest first: the price in effect at the beginning, then each change.

    A type for which Google reports no history is absent, and `troubles` has the reason. Today's list price does not
    replace a missing history, because Google may charge a running instance a different price.
    """

    segments: Mapping[str, list[PriceSegment]]
    troubles: Mapping[str, str]
    read_at: datetime


def spot_prices(
    google: Google, project: str, region: str, types: Sequence[str], since: datetime, now: datetime
) -> SpotPrices:
    """
    Return the prices of these types from `since` on. This needs one call for each type. Google keeps prices for
    KEPT_BY_GOOGLE.
    """
    found = histories(google, project, region, types, "PRICE")
    segments = {kind: _segments(answer, since, now) for kind, answer in found.answers.items()}
    empty = {
        kind: f"the history of {kind} in {region} has no readable price"
        for kind, prices in segments.items()
        if not prices
    }
    return SpotPrices({kind: prices for kind, prices in segments.items() if prices}, {**found.troubles, **empty}, now)


def _segments(answer: Mapping[str, Any], since: datetime, now: datetime) -> list[PriceSegment]:
    read = sorted(_read(answer, since), key=lambda segment: segment.since)
    before = [segment for segment in read if segment.since <= since]
    later = [segment for segment in read if since < segment.since <= now]
    changes = groupby([*before[-1:], *later], key=lambda segment: segment.usd_per_hour)
    return [next(same) for _, same in changes]


def _read(answer: Mapping[str, Any], since: datetime) -> Iterator[PriceSegment]:
    """
    Yield the prices in an answer. If a record has no start time, its price applies from `since`. A record without a
    positive price in US dollars is ignored.
    """
    for record in answer.get("priceHistory", ()):
        begins = record.get("interval", {}).get("startTime")
        at = since if begins is None else moment(begins)
        price = usd(record.get("listPrice"))
        if at is not None and price is not None and price > 0:
            yield PriceSegment(since=at, usd_per_hour=price)
