"""
Draws a random spot market for each simulated lifetime of a run. Its source is the generator, a record, or the local
cloud.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Protocol, overload

import msgspec
import numpy as np

from spotrun.clouds.local import market as local
from spotrun.clouds.local.config import NOTICE, MarketConfig
from spotrun.forecast.generator import generate, lone_losses
from spotrun.forecast.ticks import NO_LOSSES, LoneLosses, Standby
from spotrun.forecast.traces import Windows
from spotrun.instance import PriceSegment
from spotrun.offering import CapacityType, Pool
from spotrun.units import format_duration

WARNED_MAX = 64
"""
Length of the random sequence that says which losses in a lifetime have a notice. After that many losses, the sequence
is repeated.
"""
STANDBY = Standby(NOTICE.total_seconds(), (True,))
NOT_OFFERED = -1.0
ORIGIN = datetime(2026, 1, 1, tzinfo=UTC)


class SpotPools(msgspec.Struct, frozen=True):
    """
    A set of spot pools: their names, regions and prices (USD per hour), in the order in which they are requested. The
    prices are those of `size` instances, which train together.

    If a pool is not in the bucket's region, sending checkpoints between the two regions costs money. `sending` is the
    cost of saving checkpoints from each pool, in USD per hour, which is added to the pool's price; it is empty if
    saving costs nothing. `tolls` is the cost, in USD, of fetching the checkpoint when an instance starts, keyed by the
    name of the pool (on-demand instances have a key too). Pools where fetching costs nothing are left out.
    """

    name: str
    pools: tuple[str, ...]
    regions: tuple[str, ...]
    prices: tuple[float, ...]
    sending: tuple[float, ...] = ()
    tolls: dict[str, float] = {}
    size: int = 1


class Drawn(msgspec.Struct, frozen=True):
    """
    A drawn market as two arrays. The availability has the shape (tick, pool). The prices have the shape (tick, pool),
    or (pool) if they are constant. `lone_losses`, of the shape (tick, pool), is True where a gang in the pool loses a
    member although the pool keeps its capacity; None if this never happens.
    """

    up: np.ndarray
    usd: np.ndarray
    lone_losses: np.ndarray | None = None

    def only(self, pools: list[int]) -> Drawn:
        lone = None if self.lone_losses is None else self.lone_losses[:, pools]
        return Drawn(self.up[:, pools], self.usd[..., pools], lone)


class Source(Protocol):
    """
    A source of markets. `words` describes the source, to complete the sentence "spot comes and goes {words}".
    `takes_zones` is True if each loss takes all instances of a zone. Otherwise a gang also loses members alone.
    """

    @property
    def words(self) -> str: ...

    @property
    def takes_zones(self) -> bool: ...

    def draw(self, market: SpotPools, ticks: int, tick_s: float, seed: int) -> Drawn: ...


class Generated(msgspec.Struct, frozen=True):
    """Markets from this package's generator, at current prices."""

    @property
    def words(self) -> str:
        return "as in a generator fitted to nine V100 zones of 2023, at current prices"

    @property
    def takes_zones(self) -> bool:
        return False

    def draw(self, market: SpotPools, ticks: int, tick_s: float, seed: int) -> Drawn:
        return Drawn(generate(market.regions, ticks, tick_s, seed), np.array(market.prices))


class Replayed(msgspec.Struct, frozen=True):
    """
    Markets with generated capacity and replayed prices. Capacity is generated because prices carry no information about
    it. The price histories of all pools are replayed, starting at the same random time. When the replay reaches the end
    of the histories, it continues at their beginning. A pool without a history keeps its current price.
    """

    histories: dict[str, tuple[PriceSegment, ...]]
    until: datetime

    @property
    def words(self) -> str:
        days = format_duration(timedelta(hours=max(1, round(self._span_s / 3600))))
        return f"as in a generator fitted to nine V100 zones of 2023, and prices move as they did in the last {days}"

    @property
    def takes_zones(self) -> bool:
        return False

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


class Recorded(msgspec.Struct, frozen=True):
    """
    Markets that are replayed from a record, which consists of windows of time. The replay starts at a random time of a
    random window. At the end of the window, it continues with another random window. Each pool replays one recorded
    zone, and all pools replay the same recorded times. If there are more pools than zones, the remaining pools replay
    the same zones at other random times.

    A pool's price is its current price times a ratio: the zone's recorded price divided by the mean of the zone's
    recorded prices.
    """

    name: str
    windows: Windows

    @property
    def words(self) -> str:
        return f"as recorded in {self.name}, and prices move around the current ones as in the record"

    @property
    def takes_zones(self) -> bool:
        return True

    def draw(self, market: SpotPools, ticks: int, tick_s: float, seed: int) -> Drawn:
        zones = len(self.windows.zones)
        pools = range(len(market.pools))
        columns = [self._column(pool % zones, ticks, tick_s, (seed, pool // zones)) for pool in pools]
        up, relative = (np.stack([column[part] for column in columns], axis=1) for part in (0, 1))
        return Drawn(up.astype(bool), relative * np.array(market.prices))

    def _column(self, zone: int, ticks: int, tick_s: float, seed: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return for each tick whether a zone has capacity, and the zone's price as a multiple of its mean price."""
        rng, record = np.random.default_rng(seed), self.windows
        mean = record.price[:, :, zone].mean() or 1.0
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        length = 0
        while length < ticks:
            window, size = int(rng.integers(len(record.up))), record.up.shape[1]
            moments = np.arange(int(rng.integers(size)) * record.tick_s, size * record.tick_s, tick_s)
            at = (moments / record.tick_s).astype(int)
            parts.append((record.up[window, at, zone], record.price[window, at, zone] / mean))
            length += len(moments)
        up, price = (np.concatenate([part[each] for part in parts])[:ticks] for each in (0, 1))
        return up, price


class Local(msgspec.Struct, frozen=True):
    """
    Markets that the local cloud generates, with changing prices. Their seeds differ from the run's, so a forecast does
    not know the market that the run will have. A loss takes all instances of a pool, as on the local cloud.
    """

    config: MarketConfig

    @property
    def words(self) -> str:
        return "as the local cloud generates it (local.market), from other seeds, with prices that move"

    @property
    def takes_zones(self) -> bool:
        return True

    def draw(self, market: SpotPools, ticks: int, tick_s: float, seed: int) -> Drawn:
        world = local.Market(msgspec.structs.replace(self.config, seed=seed), ORIGIN)
        up = np.zeros((ticks, len(market.pools)), dtype=bool)
        usd = np.zeros((ticks, len(market.pools)))
        until = ORIGIN + timedelta(seconds=ticks * tick_s)
        for column, name in enumerate(market.pools):
            zone, _, instance_type = name.partition("/")
            pool = Pool(zone=zone, instance_type=instance_type, capacity_type=CapacityType.SPOT)
            for since, to in world.capacity(pool, ORIGIN, until):
                up[_tick(since, tick_s) : _tick(to, tick_s), column] = True
            usd[:, column] = market.size * float(world.price(pool, ORIGIN))
            for step in world.price_changes(pool, ORIGIN, until):
                usd[_tick(step.since, tick_s) :, column] = market.size * float(step.usd_per_hour)
        return Drawn(up, usd)


def _tick(moment: datetime, tick_s: float) -> int:
    """Return the first tick that begins at or after `moment`."""
    return max(0, ceil((moment - ORIGIN).total_seconds() / tick_s))


def standby_of(standby: Standby, seed: int) -> Standby:
    """
    Return a copy of `standby` for one lifetime. It decides at random which losses have a notice, with the same
    probability as on the local cloud.
    """
    rng = np.random.default_rng((seed, 1))
    warned = rng.random(WARNED_MAX) >= local.UNANNOUNCED_SHARE
    return msgspec.structs.replace(standby, warned=tuple(warned.tolist()))


class Lifetime(Sequence[Mapping[str, float]]):
    """
    A market in the form that the simulator needs: for each tick, a mapping from every pool that has capacity to its
    price. Successive ticks with the same content share one mapping.

    A mapping is made only when it is first used, because many lifetimes end long before the last tick.
    """

    def __init__(self, market: SpotPools, drawn: Drawn) -> None:
        self._pools = market.pools
        lone = drawn.lone_losses
        self.lone_losses = (
            NO_LOSSES
            if lone is None
            else LoneLosses(
                market.size,
                {pool: set(np.flatnonzero(lone[:, n]).tolist()) for n, pool in enumerate(market.pools)},
            )
        )
        usd = drawn.usd + np.array(market.sending) if market.sending else drawn.usd
        offered = np.where(drawn.up, usd, NOT_OFFERED)
        changes = np.flatnonzero((offered[1:] != offered[:-1]).any(axis=1)) + 1
        self._stretch = np.searchsorted(changes, np.arange(len(offered)), side="right").tolist()
        self._offered = offered[[0, *changes] if len(offered) else []].tolist()
        self._made: dict[int, Mapping[str, float]] = {}

    def __len__(self) -> int:
        return len(self._stretch)

    @overload
    def __getitem__(self, tick: int) -> Mapping[str, float]: ...
    @overload
    def __getitem__(self, tick: slice) -> Sequence[Mapping[str, float]]: ...
    def __getitem__(self, tick: int | slice) -> Mapping[str, float] | Sequence[Mapping[str, float]]:
        if isinstance(tick, slice):
            return [self[each] for each in range(*tick.indices(len(self)))]
        number = self._stretch[tick]
        if number not in self._made:
            here = zip(self._pools, self._offered[number], strict=True)
            self._made[number] = {pool: usd for pool, usd in here if usd != NOT_OFFERED}
        return self._made[number]


def draw(market: SpotPools, ticks: int, tick_s: float, seed: int, source: Source) -> Drawn:
    """Return the market of one lifetime. If there are no pools, `source` is not used."""
    if not market.pools:
        return Drawn(np.zeros((ticks, 0), dtype=bool), np.zeros(0))
    drawn = source.draw(market, ticks, tick_s, seed)
    if market.size == 1 or source.takes_zones:
        return drawn
    lone = lone_losses((ticks, len(market.pools)), tick_s, market.size, seed)
    return msgspec.structs.replace(drawn, lone_losses=lone)
