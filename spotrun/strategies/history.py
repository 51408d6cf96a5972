"""
Records how long each zone has had spot capacity and how often a zone lost it, and estimates how long spot will last.
Old observations fade.

Capacity depends more on the region than on the zone. In the first half of the 2023 V100 trace, spot in us-west-2a
lasted 1.7 h (cut at 8 h) while no other zone of the region had spot, 4.4 h while one other zone had it, and 6.3 h while
two had it. Other zones behave similarly. So the estimate uses the zone's record, the region's losses, and the number of
other zones in the region with spot now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from math import exp, log

import msgspec

FADING_S = 6 * 3600.0
"""
Seconds after which an observation has the weight 1/e. benchmarks/tuning.py fitted this and the next three constants on
half of the 2023 V100 trace.
"""
LOSSES_PRIOR = 0.9
UP_PRIOR_S = 1800.0
"""
The losses and the seconds up that are assumed for a zone that was never observed. A zone is `up` while it has spot.
"""
REGION_SHARE = 1 / 3
"""Weight that a loss in one zone has for each other zone of the region."""


class Past(msgspec.Struct, frozen=True):
    """The faded losses and the faded seconds up in periods that have ended."""

    losses: float = 0.0
    up_s: float = 0.0

    @classmethod
    def of(cls, *, lost: bool, up_s: float, ago_s: float) -> Past:
        """
        Return a period of `up_s` seconds up that ended `ago_s` ago, with a loss if `lost`. It is faded as in a
        ZoneRecord.
        """
        keep = exp(-ago_s / FADING_S)
        return cls(keep if lost else 0.0, FADING_S * keep * (1 - exp(-up_s / FADING_S)))

    def __add__(self, other: Past) -> Past:
        return Past(self.losses + other.losses, self.up_s + other.up_s)


class ZoneRecord(msgspec.Struct, frozen=True):
    """A zone's faded losses and faded seconds up, as of `at_s`. If `up`, the zone has had spot ever since `at_s`."""

    at_s: float
    up: bool
    losses: float = 0.0
    up_s: float = 0.0

    def up_until(self, now_s: float) -> float:
        """
        Return the faded seconds up as of `now_s`. They change by u' = -u / FADING_S, plus one per second while the zone
        is up.
        """
        keep = exp((self.at_s - now_s) / FADING_S)
        return self.up_s * keep + (FADING_S * (1 - keep) if self.up else 0.0)

    def losses_until(self, now_s: float) -> float:
        if self.losses == 0.0:
            return 0.0
        return self.losses * exp((self.at_s - now_s) / FADING_S)


class MarketHistory(msgspec.Struct, frozen=True):
    """
    All observations, computed into one record per zone. In successive calls, `now_s` must never go back.

    `told` has, for each zone, the cloud's own figure for how often spot is lost there, as a multiple of LOSSES_PRIOR; 1
    without a figure.
    """

    records: dict[str, ZoneRecord] = {}
    up: frozenset[str] = frozenset()
    told: dict[str, float] = {}

    @classmethod
    def from_pasts(
        cls, pasts: Mapping[str, Past], now_s: float, up: Collection[str] = (), told: dict[str, float] | None = None
    ) -> MarketHistory:
        """
        Return the history, as of `now_s`, that follows from each zone's past. `up` are the zones that may have spot
        now.
        """
        known = {zone: pasts.get(zone, Past()) for zone in {*pasts, *up}}
        records = {zone: ZoneRecord(now_s, zone in up, past.losses, past.up_s) for zone, past in known.items()}
        return cls(records, frozenset(up), told or {})

    def observed(self, up: Collection[str], now_s: float) -> MarketHistory:
        """
        Return the history after the observation that exactly the zones `up` have spot. Returns this object if nothing
        changed.
        """
        if len(up) == len(self.up) and self.up.issuperset(up):
            return self
        now_up = frozenset(up)
        changed = {zone: self._turned(zone, zone in now_up, now_s) for zone in now_up ^ self.up}
        return MarketHistory(self.records | changed, now_up, self.told)

    def _turned(self, zone: str, up: bool, now_s: float) -> ZoneRecord:
        before = self.records.get(zone)
        if before is None:
            return ZoneRecord(now_s, up)
        lost = before.losses_until(now_s) + (0 if up else 1)
        return ZoneRecord(now_s, up, lost, before.up_until(now_s))

    def expected_life_s(self, zone: str, now_s: float, horizon_s: float) -> float:
        """
        Return for how many more seconds spot in `zone` is expected to last. A life longer than `horizon_s` counts as
        `horizon_s`.

        If the unknown hazard has a Gamma prior, then after n losses in u seconds up the remaining life has a Lomax
        distribution. That is heavy-tailed: the longer spot has lasted, the longer it is expected to last. The hazard is
        assumed inverse to the number of zones in the region that have spot: this zone and k others. The m losses of the
        region's other zones count too, with the weight REGION_SHARE, and `told` counts until observations outweigh it.
        With shape b = LOSSES_PRIOR told + n + REGION_SHARE m and scale a = (1 + k) (UP_PRIOR_S + u)

            E[min(life, h)] = a / (1 - b) * ((1 + h / a) ** (1 - b) - 1)
        """
        record = self.records.get(zone)
        losses = 0.0 if record is None else record.losses_until(now_s)
        up_s = UP_PRIOR_S + (0.0 if record is None else record.up_until(now_s))
        beside, region = 0, region_of(zone)
        for other, its in self.records.items():
            if region_of(other) == region and other != zone:
                beside += its.up
                losses += REGION_SHARE * its.losses_until(now_s) if its.losses else 0.0
        scale = (1 + beside) * up_s
        rest = 1 - LOSSES_PRIOR * self.told.get(zone, 1.0) - losses
        if abs(rest) < 1e-6:
            return scale * log(1 + horizon_s / scale)
        return float(scale / rest * ((1 + horizon_s / scale) ** rest - 1))


@cache
def region_of(zone: str) -> str:
    """
    Return the common part of the names of one region's zones, such as `us-east-1` for `us-east-1a` and `us-east-1b`, or
    `us-central1` for `us-central1-a` and `us-central1-b`.

    For a pool's name, such as `us-east-1a/g5.xlarge`, the result also contains the instance type, because the capacity
    of different types is independent. If a zone's name is a single letter, that letter is also the region.
    """
    place, slash, instance_type = zone.partition("/")
    return f"{place[:-1] or place}{slash}{instance_type}"
