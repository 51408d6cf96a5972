"""The market of the local cloud, for a simulated world."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from decimal import Decimal
from math import inf
from typing import Literal

from spotrun.clouds.local.catalog import INSTANCE_TYPES, ZONES
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.market import Market
from spotrun.offering import Offering, Pool
from tests.support.manual_clock import ManualClock

ZONES_TAKEN = ZONES[:3]
Kind = Literal["calm", "generated"]


class LocalMarket:
    """It rents out these types. The world begins `began_s` after the market: a later world meets the same market."""

    def __init__(self, seed: int, kind: Kind, types: Collection[str], began_s: float = 0.0) -> None:
        self._began_s, self._origin = began_s, ManualClock().now()
        wanted = tuple(each for each in INSTANCE_TYPES if each.name in types)
        config = MarketConfig(seed=seed, kind=kind, zones=ZONES_TAKEN, instance_types=wanted)
        self._market = Market(config, self._origin)
        self._pools = [each.pool for each in self._market.offerings(self._origin)]

    def offerings(self, at_s: float) -> list[Offering]:
        return self._market.offerings(self._at(at_s))

    def has(self, pool: Pool, at_s: float) -> bool:
        return self._market.has_capacity(pool, self._at(at_s))

    def price(self, pool: Pool, at_s: float) -> Decimal:
        return self._market.price(pool, self._at(at_s))

    def room(self, pool: Pool, at_s: float) -> float:
        return inf

    def taken_s(self, pool: Pool, at_s: float, place: int = 0) -> float:
        loss = self._market.next_loss(pool, self._at(at_s))
        return inf if loss is None else self._seconds(loss.at)

    def price_may_change_s(self, at_s: float) -> float:
        soonest = min(self._market.price_step(pool, self._at(at_s)).until for pool in self._pools)
        return inf if soonest.year == soonest.max.year else self._seconds(soonest)

    def _at(self, at_s: float) -> datetime:
        return self._origin + timedelta(seconds=self._began_s + at_s)

    def _seconds(self, at: datetime) -> float:
        return (at - self._origin).total_seconds() - self._began_s
