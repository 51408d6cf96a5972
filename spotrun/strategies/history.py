"""
Estimates how long spot capacity in a zone will last. The estimate is based on a record of each zone: how long the zone
has had spot capacity, and how often it has lost that capacity. Observations fade: the older, the less they count.

Capacity depends more on the region than on the zone. In the first half of the 2023 V100 trace, spot in us-west-2a
lasted 1.7 h while no other zone of the region had spot, 4.4 h while one other zone had it, and 6.3 h while two had it.
(In these averages, a period of more than 8 h counts as 8 h.) Other zones behave similarly. So the estimate for a zone
uses three things: the record of the zone, the losses of the whole region, and the number of other zones of the region
that have spot now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from math import exp, log

import msgspec

FADING_S = 6 * 3600.0
"""
Seconds after which an observation counts only 1/e of what it did at first. benchmarks/tuning.py fitted this and the
next three constants on half of the 2023 V100 trace.
"""
LOSSES_PRIOR = 0.9
UP_PRIOR_S = 1800.0
"""
The record with which each zone begins, before anything is observed: the zone was `up` (had spot) for UP_PRIOR_S seconds
in total, and lost spot LOSSES_PRIOR times.
"""
REGION_SHARE = 1 / 3
"""
Weight of a loss in one zone when the life of spot in another zone of the same region is estimated. For the zone in
which the loss happened, its weight is 1.
"""


class Past(msgspec.Struct, frozen=True):
    """
    The losses of a zone and the seconds for which it had spot, in periods that have ended. In both numbers, older
    periods count less.
    """

    losses: float = 0.0
    up_s: float = 0.0

    @classmethod
    def of(cls, *, lost: bool, up_s: float, ago_s: float) -> Past:
        """
        Return the `Past` of a zone for which only one period is known. It ended `ago_s` seconds ago. In it, the zone
        had spot for `up_s` seconds, and then lost it if `lost` is True. The seconds and the loss fade in the same way
        as in a ZoneRecord.
        """
        keep = exp(-ago_s / FADING_S)
        return cls(keep if lost else 0.0, FADING_S * keep * (1 - exp(-up_s / FADING_S)))

    def __add__(self, other: Past) -> Past:
        return Past(self.losses + other.losses, self.up_s + other.up_s)


class ZoneRecord(msgspec.Struct, frozen=True):
    """
    The losses of a zone, and the seconds for which it had spot, up to `at_s`. In both numbers, older observations count
    less. `up` is True if the zone has had spot ever since `at_s`.
    """

    at_s: float
    up: bool
    losses: float = 0.0
    up_s: float = 0.0

    def up_until(self, now_s: float) -> float:
        """
        Return `up_s` (u) as of `now_s`. It decays by u' = -u / FADING_S. While the zone is up, it also grows by 1 per
        second.
        """
        keep = exp((self.at_s - now_s) / FADING_S)
        return self.up_s * keep + (FADING_S * (1 - keep) if self.up else 0.0)

    def losses_until(self, now_s: float) -> float:
        if self.losses == 0.0:
            return 0.0
        return self.losses * exp((self.at_s - now_s) / FADING_S)


class MarketHistory(msgspec.Struct, frozen=True):
    """
    All observations of the market, summarized in one record per zone. `now_s` must not decrease from one call to the
    next.

    `told` has the loss rate of spot that the cloud reports for each zone, as a multiple of LOSSES_PRIOR. It is 1 for a
    zone about which the cloud reports nothing.
    """

    records: dict[str, ZoneRecord] = {}
    up: frozenset[str] = frozenset()
    told: dict[str, float] = {}

    @classmethod
    def from_pasts(
        cls, pasts: Mapping[str, Past], now_s: float, up: Collection[str] = (), told: dict[str, float] | None = None
    ) -> MarketHistory:
        """
        Return the history as of `now_s`. `pasts` has the `Past` of each zone. `up` are the zones that are assumed to
        have spot now.
        """
        known = {zone: pasts.get(zone, Past()) for zone in {*pasts, *up}}
        records = {zone: ZoneRecord(now_s, zone in up, past.losses, past.up_s) for zone, past in known.items()}
        return cls(records, frozenset(up), told or {})

    def observed(self, up: Collection[str], now_s: float) -> MarketHistory:
        """
        Return the history with one more observation: at `now_s`, the zones `up` have spot, and no others do. If the
        same zones had spot at the previous observation, return this object.
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
        Return how many more seconds spot in `zone` is expected to last. A life of more than `horizon_s` counts as
        `horizon_s`.

        The hazard of the zone is unknown, and has a Gamma prior. After n losses in u seconds with spot, the remaining
        life of spot therefore has a Lomax distribution, which is heavy-tailed: the longer spot has lasted, the longer
        it is expected to last.

        The estimate takes the region into account in two ways. First, the hazard is assumed to be inversely
        proportional to the number of zones in the region that have spot: this zone and k others. Second, the m losses
        of the region's other zones count too, each with the weight REGION_SHARE. The cloud's factor `told` is part of
        the prior, so its influence decreases with each observation.

        With the shape b = LOSSES_PRIOR told + n + REGION_SHARE m and the scale a = (1 + k) (UP_PRIOR_S + u)

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
    Return the region of a zone: the part of the name that the zones of one region have in common. It is `us-east-1` for
    `us-east-1a` and `us-east-1b`, and `us-central1-` for `us-central1-a` and `us-central1-b`.

    For the name of a pool, such as `us-east-1a/g5.xlarge`, the result also contains the instance type, because capacity
    for one type says nothing about another. If the name of a zone is a single letter, the region has the same name.
    """
    place, slash, instance_type = zone.partition("/")
    return f"{place[:-1] or place}{slash}{instance_type}"
