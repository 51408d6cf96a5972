"""A market for a forecast whose prices are those that the cloud itself asked lately."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import numpy as np

from spotrun.instance import PriceSegment
from spotrun.simulation.generator import generate
from spotrun.simulation.lifetimes import Drawn, SpotPools
from spotrun.units import format_duration


class Replayed(msgspec.Struct, frozen=True):
    """
    Capacity from the generator: prices tell nothing of it. The prices of all pools are those of the same moments of
    their history, from a random one on; behind its end it begins anew. A pool without any keeps its price of now.
    """

    histories: dict[str, tuple[PriceSegment, ...]]
    until: datetime

    @property
    def words(self) -> str:
        days = format_duration(timedelta(hours=max(1, round(self._span_s / 3600))))
        return f"as in a generator fitted to nine V100 zones of 2023, and prices move as they did in the last {days}"

    @property
    def _since(self) -> datetime:
        return min(segments[0].since for segments in self.histories.values())

    @property
    def _span_s(self) -> float:
        return (self.until - self._since).total_seconds()

    def draw(self, market: SpotPools, ticks: int, tick_s: float, seed: int) -> Drawn:
        begin_s = np.random.default_rng((seed, 3)).uniform(0, self._span_s)
        moments = (begin_s + np.arange(ticks) * tick_s) % self._span_s
        usd = [self._course(*pool, moments) for pool in zip(market.pools, market.prices, strict=True)]
        return Drawn(generate(market.regions, ticks, tick_s, seed), np.stack(usd, axis=1))

    def _course(self, pool: str, usd_now: float, moments: np.ndarray) -> np.ndarray:
        segments = self.histories.get(pool)
        if not segments or not segments[-1].usd_per_hour:
            return np.full(len(moments), usd_now)
        since = np.array([(each.since - self._since).total_seconds() for each in segments])
        relative = np.array([float(each.usd_per_hour / segments[-1].usd_per_hour) for each in segments])
        at = np.maximum(np.searchsorted(since, moments, side="right") - 1, 0)
        return np.asarray(relative[at] * usd_now)
