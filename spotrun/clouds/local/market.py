"""
The simulated spot market. Prices and capacity depend only on a seed and on run time, so every process computes the same
market.

The market is modeled on public traces of V100 and K80 spot capacity (2022-23). A pool's capacity comes and goes.
Periods with capacity are heavy-tailed: they last half an hour in the median and three hours on average, and one in ten
lasts ten minutes or less. After about one loss in four, capacity is back within ten minutes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Generic, NamedTuple, TypeVar

from spotrun.clouds.local.catalog import InstanceType, Zone
from spotrun.clouds.local.config import NOTICE, MarketConfig
from spotrun.instance import PriceSegment
from spotrun.market.quotes import LOOKED_BACK, Quote
from spotrun.offering import RENTED, CapacityType, Offering, Pool

SPOT_SHARE_MIN, SPOT_SHARE_MAX = 0.25, 0.40
"""Minimum and maximum of the spot price, as shares of the on-demand price."""

UP_MIN_MINUTES, UP_MEDIAN_MINUTES, UP_SIGMA = 8.0, 24.0, 2.0
"""
Parameters of the length of a period with capacity: UP_MIN_MINUTES plus a lognormal variable. The length has a median of
32 min, a 10th percentile of 10 min and a mean of 3.1 h.
"""
DOWN_MEDIAN_MINUTES, DOWN_SIGMA = 25.0, 1.4
PRICE_MEDIAN_MINUTES, PRICE_SIGMA = 90.0, 0.8
UNANNOUNCED_SHARE = 0.1
"""Share of interruptions without notice. Clouds promise notices only as best effort."""
LEAD_MINUTES_MAX = 10.0
"""
Maximum minutes from a recommendation to rebalance until the notice that follows it. This is an assumption, because no
cloud publishes this time.
"""
FALSE_LEAD_MINUTES = 30.0, 120.0
"""Minimum and maximum minutes from a false recommendation (one that no notice follows) until the pool's next loss."""

WARM_UP = timedelta(days=2)
"""
Age of the market when a run starts. With an age of zero, every run would start at the same point of the market, the
beginning of its first period.
"""


class Loss(NamedTuple):
    """A loss of a pool's capacity. `notice` is the time from the notice to the loss; None if there is no notice."""

    at: datetime
    notice: timedelta | None


class Availability(NamedTuple):
    """A period with capacity, from `since` to `until`."""

    since: datetime
    until: datetime
    notice: timedelta | None


class PriceStep(NamedTuple):
    since: datetime
    until: datetime
    usd_per_hour: Decimal


class Market:
    """The market of one run: its prices and capacity. `origin` is the time at which run time began."""

    def __init__(self, config: MarketConfig, origin: datetime) -> None:
        self._config = config
        self._start = origin - WARM_UP
        self._types = {kind.name: kind for kind in config.instance_types}
        self._zones = {zone.name: zone for zone in config.zones}
        self._availability: dict[Pool, Timeline[Availability]] = {}
        self._prices: dict[Pool, Timeline[PriceStep]] = {}

    def rents(self, pool: Pool) -> bool:
        return pool.zone in self._zones and pool.instance_type in self._types

    def offerings(self, at: datetime) -> list[Offering]:
        return [
            self._offering(zone, kind, capacity_type, at)
            for zone in self._config.zones
            for kind in self._config.instance_types
            for capacity_type in RENTED
        ]

    def has_capacity(self, pool: Pool, at: datetime) -> bool:
        """
        Return whether a launch at `at` would find capacity. There is none from the notice of a loss until capacity
        comes back.
        """
        if self._never_lost(pool):
            return True
        period = self._availability_of(pool).at(at)
        return period.since <= at < period.until - NOTICE

    def next_loss(self, pool: Pool, at: datetime) -> Loss | None:
        """
        Return the next loss of the pool after `at`, which interrupts all instances in it. Return None if the pool is
        never lost.
        """
        if self._never_lost(pool):
            return None
        period = self._availability_of(pool).at(at)
        return Loss(period.until, period.notice)

    def next_recommendation(self, pool: Pool, at: datetime) -> datetime | None:
        """
        Return the time of the next recommendation to rebalance for instances in the pool: after `at`, and before the
        pool's next loss. Return None if there is none.

        According to AWS, a recommendation can arrive before the notice, or together with it
        (docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html). AWS does not publish how often or
        how early recommendations come. So this market makes three assumptions: a recommendation comes before the
        fraction `recommended` of all losses; it comes at most LEAD_MINUTES_MAX before the notice; and there are as many
        false recommendations as true ones.
        """
        loss = self.next_loss(pool, at)
        if loss is None:
            return None
        random, share = self._random(pool, f"recommendations/{loss.at.isoformat()}"), self._config.recommended
        true, false = random.random() < share, random.random() < share
        early, long_before = random.uniform(0, LEAD_MINUTES_MAX), random.uniform(*FALSE_LEAD_MINUTES)
        told = [loss.at - NOTICE - timedelta(minutes=early)] * true + [loss.at - timedelta(minutes=long_before)] * false
        return min((moment for moment in told if moment > at), default=None)

    def capacity(self, pool: Pool, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield the periods with capacity that end after `after` and begin before `until`."""
        if self._never_lost(pool):
            yield after, until
            return
        period = self._availability_of(pool).at(after)
        while period.since < until:
            yield period.since, period.until
            period = self._availability_of(pool).at(period.until)

    def price(self, pool: Pool, at: datetime) -> Decimal:
        """Return the price in USD per instance-hour."""
        return self.price_step(pool, at).usd_per_hour

    def price_step(self, pool: Pool, at: datetime) -> PriceStep:
        """Return the price at `at`, with the period in which it applies."""
        if pool.capacity_type is not CapacityType.SPOT:
            return self._constant(self._types[pool.instance_type].on_demand_usd_per_hour)
        if self._config.kind == "calm":
            return self._constant(self._spot_price(pool, self._usual_share(pool)))
        return self._prices_of(pool).at(at)

    def price_changes(self, pool: Pool, after: datetime, until: datetime) -> Iterator[PriceStep]:
        """Yield the price steps that begin after `after` and not later than `until`."""
        step = self.price_step(pool, after)
        while step.until <= until:
            step = self.price_step(pool, step.until)
            yield step

    def quote(self, offering: Offering, now: datetime) -> Quote:
        """
        Return the offering with its prices during the last LOOKED_BACK, or since the market began if that is more
        recent.
        """
        pool = offering.pool
        since = max(self._start, now - LOOKED_BACK)
        first = self.price_step(pool, since)
        changes = self.price_changes(pool, since, now)
        return Quote(
            offering=offering,
            history=(
                PriceSegment(since=since, usd_per_hour=first.usd_per_hour),
                *(PriceSegment(since=step.since, usd_per_hour=step.usd_per_hour) for step in changes),
            ),
            on_demand_usd_per_hour=self._types[pool.instance_type].on_demand_usd_per_hour,
        )

    def _offering(self, zone: Zone, kind: InstanceType, capacity_type: CapacityType, at: datetime) -> Offering:
        pool = Pool(zone=zone.name, instance_type=kind.name, capacity_type=capacity_type)
        return Offering(
            cloud="local",
            region=zone.region,
            zone=zone.name,
            instance_type=kind.name,
            capacity_type=capacity_type,
            price_usd_per_hour=self.price(pool, at),
            accelerators=kind.accelerators,
            cpus=kind.cpus,
            memory_gib=kind.memory_gib,
            simulated=True,
        )

    def _never_lost(self, pool: Pool) -> bool:
        return self._config.kind == "calm" or pool.capacity_type is not CapacityType.SPOT

    def _availability_of(self, pool: Pool) -> Timeline[Availability]:
        if pool not in self._availability:
            self._availability[pool] = Timeline(_availabilities(self._random(pool, "capacity"), self._start))
        return self._availability[pool]

    def _prices_of(self, pool: Pool) -> Timeline[PriceStep]:
        if pool not in self._prices:
            self._prices[pool] = Timeline(self._price_steps(pool))
        return self._prices[pool]

    def _price_steps(self, pool: Pool) -> Iterator[PriceStep]:
        random, usual, since = self._random(pool, "price"), self._usual_share(pool), self._start
        while True:
            until = since + _lognormal(random, PRICE_MEDIAN_MINUTES, PRICE_SIGMA)
            share = min(max(random.gauss(usual, 0.02), SPOT_SHARE_MIN), SPOT_SHARE_MAX)
            yield PriceStep(since, until, self._spot_price(pool, share))
            since = until

    def _spot_price(self, pool: Pool, share: float) -> Decimal:
        exact = self._types[pool.instance_type].on_demand_usd_per_hour * Decimal(repr(share))
        return exact.quantize(Decimal("0.0001"))

    def _usual_share(self, pool: Pool) -> float:
        return self._random(pool, "share").uniform(SPOT_SHARE_MIN + 0.02, SPOT_SHARE_MAX - 0.02)

    def _constant(self, usd_per_hour: Decimal) -> PriceStep:
        return PriceStep(self._start, datetime.max.replace(tzinfo=self._start.tzinfo), usd_per_hour)

    def _random(self, pool: Pool, purpose: str) -> Random:
        return Random(f"{self._config.seed}/{pool.zone}/{pool.instance_type}/{purpose}")


T = TypeVar("T", Availability, PriceStep)


class Timeline(Generic[T]):
    """
    An endless series of periods. Each period is generated when a caller first asks for a time in it or after it.
    """

    def __init__(self, source: Iterator[T]) -> None:
        self._source: Iterator[T] = source
        self._drawn: list[T] = []

    def at(self, moment: datetime) -> T:
        """Return the first period that has not ended at `moment`."""
        while not self._drawn or self._drawn[-1].until <= moment:
            self._drawn.append(next(self._source))
        return self._drawn[bisect_right(self._drawn, moment, key=lambda period: period.until)]


def _availabilities(random: Random, start: datetime) -> Iterator[Availability]:
    """Yield an endless series of periods in which a pool has capacity. At `start` it has none."""
    while True:
        since = start + _lognormal(random, DOWN_MEDIAN_MINUTES, DOWN_SIGMA)
        until = since + timedelta(minutes=UP_MIN_MINUTES) + _lognormal(random, UP_MEDIAN_MINUTES, UP_SIGMA)
        yield Availability(since, until, None if random.random() < UNANNOUNCED_SHARE else NOTICE)
        start = until


def _lognormal(random: Random, median_minutes: float, sigma: float) -> timedelta:
    return timedelta(minutes=random.lognormvariate(math.log(median_minutes), sigma))
