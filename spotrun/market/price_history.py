"""
Summarizes the history of a price: its range, and its mean in each of several equal parts of a period. No function has
side effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from spotrun.instance import PriceSegment

_MICROSECOND = timedelta(microseconds=1)


class PricePeriod(NamedTuple):
    """The price from `start` to `end`."""

    start: datetime
    end: datetime
    usd_per_hour: Decimal


class PriceRange(NamedTuple):
    """
    The mean, minimum and maximum price over a period, in USD per hour.

    The mean is weighted by time: a price that applied for a day counts 24 times as much as a price that applied for an
    hour. So it does not matter how often EC2 repeats the same price in its list.
    """

    mean: Decimal
    min: Decimal
    max: Decimal


def price_range(segments: Sequence[PriceSegment], since: datetime, until: datetime) -> PriceRange | None:
    """
    Return the range of prices from `since` to `until`; None if no price is known for this period. `segments` are the
    prices, oldest first.
    """
    known = list(spells(segments, since, until))
    if not known:
        return None
    prices = [spell.usd_per_hour for spell in known]
    return PriceRange(_mean(known), min(prices), max(prices))


def price_series(
    segments: Sequence[PriceSegment], since: datetime, until: datetime, points: int
) -> list[Decimal | None]:
    """
    Return the mean price in each of `points` equal parts of the period from `since` to `until`; None for a part without
    a known price.
    """
    step = (until - since) / points
    parts = [list(spells(segments, since + step * n, since + step * (n + 1))) for n in range(points)]
    return [_mean(part) if part else None for part in parts]


def spells(segments: Sequence[PriceSegment], since: datetime, until: datetime) -> Iterator[PricePeriod]:
    """
    Yield each price that applied at some time from `since` to `until`, with the part of this period in which it
    applied.
    """
    ends = [*(segment.since for segment in segments[1:]), until]
    for segment, end in zip(segments, ends, strict=False):
        spell = PricePeriod(max(segment.since, since), min(end, until), segment.usd_per_hour)
        if spell.start < spell.end:
            yield spell


def _mean(known: Sequence[PricePeriod]) -> Decimal:
    weights = [(spell.end - spell.start) // _MICROSECOND for spell in known]
    total = sum((weight * spell.usd_per_hour for weight, spell in zip(weights, known, strict=True)), Decimal(0))
    return total / sum(weights)
