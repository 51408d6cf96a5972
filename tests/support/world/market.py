"""
Where spot can be had in a world, and at what price. Time is seconds since the world began.

Two markets: recorded or generated ticks, the same as `spotrun simulate` reads them; and one that changes only by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from math import inf
from typing import Protocol

from msgspec.structs import replace

from spotrun.forecast.ticks import Ticks
from spotrun.offering import CapacityType, Offering, Pool

TICK_ROUNDING = 1e-9
"""A moment this little before a tick (as a share of a tick) counts as its start."""


class SimulatedMarket(Protocol):
    """On-demand capacity can always be had; spot comes and goes by pool."""

    def offerings(self, at_s: float) -> list[Offering]:
        """Everything that is rented out, with its price now, whether or not there is capacity."""

    def has(self, pool: Pool, at_s: float) -> bool:
        """Whether a launch would get capacity."""

    def price(self, pool: Pool, at_s: float) -> Decimal:
        """USD per instance-hour."""

    def room(self, pool: Pool, at_s: float) -> float:
        """For how many instances a pool has places; inf if nobody counts them."""

    def taken_s(self, pool: Pool, at_s: float, place: int = 0) -> float:
        """
        The next moment, not before `at_s`, at which the instance in that place of the pool is taken back; inf for
        never. Where places are not counted, all are taken at once.
        """

    def price_may_change_s(self, at_s: float) -> float:
        """The next moment after `at_s` at which prices may be others."""


class CalmMarket:
    """
    What is offered, at prices that stand until somebody changes them; nothing is taken back. Pools in `empty` have no
    capacity now.
    """

    def __init__(self, offerings: Iterable[Offering]) -> None:
        self.all = {offering.pool: offering for offering in offerings}
        self.empty: set[Pool] = set()

    def offerings(self, at_s: float) -> list[Offering]:
        return list(self.all.values())

    def has(self, pool: Pool, at_s: float) -> bool:
        return pool not in self.empty

    def room(self, pool: Pool, at_s: float) -> float:
        return inf

    def price(self, pool: Pool, at_s: float) -> Decimal:
        return self.all[pool].price_usd_per_hour

    def taken_s(self, pool: Pool, at_s: float, place: int = 0) -> float:
        return inf

    def price_may_change_s(self, at_s: float) -> float:
        return inf

    def reprice(self, pool: Pool, usd_per_hour: Decimal) -> None:
        """From now on a pool has another price; its cloud has to be told (`SimulatedCloud.repriced`)."""
        self.all[pool] = replace(self.all[pool], price_usd_per_hour=usd_per_hour)

    def no_spot(self) -> None:
        """From now on no spot can be launched anywhere."""
        self.empty |= {pool for pool in self.all if pool.capacity_type is CapacityType.SPOT}


class TickMarket:
    """
    A market in ticks: in each, the pools that have spot, with their price. A loss falls on a tick's start.

    `spot` names the offering of each pool in the ticks. While it has no capacity its last price stands, so that a price
    tells nobody where there is some; the offering's own price is that of a pool that never has any. When the record is
    over it begins anew.
    """

    def __init__(
        self, ticks: Ticks, tick_s: float, spot: Mapping[str, Offering], on_demand: Iterable[Offering]
    ) -> None:
        self._tick_s = tick_s
        self._length = len(ticks)
        self._spot = dict(spot)
        self._names = {offering.pool: name for name, offering in spot.items()}
        self._on_demand = {offering.pool: offering for offering in on_demand}
        self._ticks_left = {name: _ticks_left([name in tick for tick in ticks]) for name in spot}
        self._prices = {name: _prices([tick.get(name) for tick in ticks], spot[name]) for name in spot}
        self._offered: dict[int, list[Offering]] = {}

    def offerings(self, at_s: float) -> list[Offering]:
        here = self._number(at_s) % self._length
        if here not in self._offered:
            spot = [replace(one, price_usd_per_hour=self._prices[name][here]) for name, one in self._spot.items()]
            self._offered[here] = [*spot, *self._on_demand.values()]
        return self._offered[here]

    def has(self, pool: Pool, at_s: float) -> bool:
        name = self._names.get(pool)
        return name is None or self._ticks_left[name][self._number(at_s) % self._length] > 0

    def price(self, pool: Pool, at_s: float) -> Decimal:
        name = self._names.get(pool)
        if name is None:
            return self._on_demand[pool].price_usd_per_hour
        return self._prices[name][self._number(at_s) % self._length]

    def room(self, pool: Pool, at_s: float) -> float:
        return inf

    def taken_s(self, pool: Pool, at_s: float, place: int = 0) -> float:
        name = self._names.get(pool)
        return inf if name is None else self._next_s(self._ticks_left[name], at_s)

    def _next_s(self, ticks_left: Sequence[float], at_s: float) -> float:
        """When the ticks that are left are over."""
        number = self._number(at_s)
        left = ticks_left[number % self._length]
        return at_s if left == 0 else (number + left) * self._tick_s

    def price_may_change_s(self, at_s: float) -> float:
        return (self._number(at_s) + 1) * self._tick_s

    def _number(self, at_s: float) -> int:
        return int(at_s / self._tick_s + TICK_ROUNDING)


class CountedMarket(TickMarket):
    """
    A market whose spot pools have so many places in each tick. If there are fewer than before, what is in the highest
    places is taken back.
    """

    def __init__(
        self,
        counts: Sequence[Mapping[str, int]],
        tick_s: float,
        spot: Mapping[str, Offering],
        on_demand: Iterable[Offering],
    ) -> None:
        prices = {name: float(offering.price_usd_per_hour) for name, offering in spot.items()}
        super().__init__(
            [{name: prices[name] for name, count in tick.items() if count} for tick in counts], tick_s, spot, on_demand
        )
        self._counts = [dict(tick) for tick in counts]
        self._left = {
            (name, place): _ticks_left([tick.get(name, 0) > place for tick in counts])
            for name in spot
            for place in range(max(tick.get(name, 0) for tick in counts))
        }

    def room(self, pool: Pool, at_s: float) -> float:
        name = self._names.get(pool)
        return inf if name is None else self._counts[self._number(at_s) % self._length].get(name, 0)

    def taken_s(self, pool: Pool, at_s: float, place: int = 0) -> float:
        name = self._names.get(pool)
        return inf if name is None else self._next_s(self._left[name, place], at_s)


def usd(price: float) -> Decimal:
    """A simulated hourly price as an amount, to a hundredth of a cent."""
    return Decimal(repr(round(price, 4)))


def _ticks_left(up: list[bool]) -> list[float]:
    """From each tick on, how many the pool still has; inf where it is never lost."""
    if all(up):
        return [inf] * len(up)
    left: list[float] = [0.0] * len(up)
    following = 0.0
    for number in [*reversed(range(len(up))), *reversed(range(len(up)))]:
        following = following + 1 if up[number] else 0.0
        left[number] = following
    return left


def _prices(told: Sequence[float | None], offering: Offering) -> list[Decimal]:
    """The price of each tick: its own, else the last one before it, else the first."""
    known = [usd(price) for price in told if price is not None]
    last = known[0] if known else offering.price_usd_per_hour
    prices = []
    for price in told:
        last = last if price is None else usd(price)
        prices.append(last)
    return prices
