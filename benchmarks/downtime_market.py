"""
The spot market of `benchmarks.downtime`: where there is capacity, when it is taken, how long machines take to start.

Zones come and go as in `spotrun.forecast.generator`, which was fitted to a record of nine V100 zones in three
regions. A loss that is announced is announced `notice_s` before, and from then on the zone gives out nothing more.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, inf

import numpy as np
from msgspec.structs import replace

from spotrun.forecast.generator import generate
from spotrun.offering import CapacityType, Offering
from spotrun.policy import assumptions
from tests.support.world import TickMarket, Timings
from tests.support.world.rng import Rng

REGIONS = ("east",) * 4 + ("mid",) * 2 + ("west",) * 3
ZONES = tuple(f"{region}-{number}" for number, region in enumerate(REGIONS))
REGION_OF = dict(zip(ZONES, REGIONS, strict=True))
SPOT = {
    zone: Offering(
        cloud="local",
        region=REGION_OF[zone],
        zone=zone,
        instance_type="gpu",
        capacity_type=CapacityType.SPOT,
        price_usd_per_hour=1 + Decimal(number) / 100,
        simulated=True,
    )
    for number, zone in enumerate(ZONES)
}
ON_DEMAND = replace(SPOT[ZONES[0]], capacity_type=CapacityType.ON_DEMAND, price_usd_per_hour=Decimal("3.06"))
"""
No rule here requests it; its price is the value of an hour of time. A V100 costs this much, a third of it on spot.
"""
TICK_S = 7.3
"""Seconds of a tick, no multiple of any polling interval."""


@dataclass(frozen=True)
class Setting:
    """
    The common setting of all rules; seconds. Of all losses, the share `unannounced` comes without a notice.

    A set-up that is packed is unpacked on later instances in the share `unpack` of its time; with 1 each instance runs
    it again.

    Of all losses, the share `recommended` has a recommendation to rebalance from 0 to `lead_s` before its notice would
    come; and an instance gets one that nothing follows `alarms` times an hour. AWS publishes neither how many come
    before the notice nor how long before, only that not all do: these are assumptions.

    A restore is the imports of the training script with the download of the checkpoint next to them. A checkpoint is
    taken every `every_s` and is durable `commit_s` later; training does not stand still for it.
    """

    notice_s: float = 120.0
    unannounced: float = 0.1
    recommended: float = 0.5
    lead_s: float = 600.0
    alarms: float = 0.1
    boot_s: tuple[float, float] = (60.0, 120.0)
    setup_s: tuple[float, float] = (0.0, 180.0)
    unpack: float = assumptions.UNPACK_SHARE
    imports_s: float = 8.0
    fetch_s: float = 4.0
    every_s: float = 85.0
    commit_s: float = 10.0
    horizon_s: float = 12 * 3600.0

    @property
    def unwarned(self) -> Setting:
        """Return the same without recommendations."""
        return dataclasses.replace(self, recommended=0.0, alarms=0.0)

    @property
    def anew(self) -> Setting:
        """Return the same without packs."""
        return dataclasses.replace(self, unpack=1.0)

    @property
    def timings(self) -> Timings:
        """Return the same in a simulated world. Boot begins with the launch; a standby has its imports behind it."""
        restore_s = max(self.imports_s, self.fetch_s)
        return Timings(
            pending_s=(0.0, 0.0),
            boot_s=self.boot_s,
            setup_s=self.setup_s,
            unpack=self.unpack,
            restore_s=(restore_s, restore_s),
            warm_restore_s=(self.fetch_s, self.fetch_s),
            notice_s=self.notice_s,
            unannounced=self.unannounced,
            recommended=self.recommended,
            lead_s=(0.0, self.lead_s),
            alarms_per_hour=self.alarms,
        )


@dataclass(frozen=True)
class Loss:
    """A zone's capacity is taken at `at_s`; `told_s` is the time of its notice, inf if it has none."""

    at_s: float
    told_s: float


class Market:
    """One market, by its seed; `weather` is where there is spot. Times are seconds since the job was launched."""

    def __init__(self, seed: int, setting: Setting, weather: TickMarket | None = None) -> None:
        self.seed, self.setting = seed, setting
        self.weather = weather or generated(seed, setting.horizon_s)
        self._timings, self._rng = setting.timings, Rng(seed)

    def has(self, zone: str, now_s: float) -> bool:
        """Return whether an instance requested now would be granted."""
        loss = self.loss_after(zone, now_s)
        return self.weather.has(SPOT[zone].pool, now_s) and (loss is None or loss.told_s > now_s)

    def loss_after(self, zone: str, now_s: float) -> Loss | None:
        """Return the loss that ends an instance running in `zone` now; None if there is none."""
        at_s = self.weather.taken_s(SPOT[zone].pool, now_s)
        return None if at_s == inf else Loss(at_s, self._timings.told_s(self._rng, SPOT[zone].pool, at_s))

    def start_s(self, ordinal: int) -> tuple[float, float]:
        """Return boot and full set-up of the job's instance `ordinal`: the same under every rule, and in every zone."""
        rng = np.random.default_rng([self.seed, 2, ordinal])
        return float(rng.uniform(*self.setting.boot_s)), float(rng.uniform(*self.setting.setup_s))


def generated(seed: int, horizon_s: float) -> TickMarket:
    up = generate(REGIONS, ceil(horizon_s / TICK_S) + 1, TICK_S, seed)
    prices = {zone: float(offering.price_usd_per_hour) for zone, offering in SPOT.items()}
    ticks = [{zone: prices[zone] for zone, has in zip(ZONES, row, strict=True) if has} for row in up]
    return TickMarket(ticks, TICK_S, SPOT, on_demand=(ON_DEMAND,))
