"""
What an AWS account is charged for its instances, by what AWS publishes alone: nothing here is of spotrun's own account.

Per second and 60 s at least, spot at the price of the moment, nothing for spot that AWS takes in its first hour:
    https://aws.amazon.com/ec2/pricing/on-demand, https://aws.amazon.com/ec2/spot/pricing
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html
A gp3 volume and a public address are charged beside it, whoever ended the instance:
    https://aws.amazon.com/ebs/pricing, https://aws.amazon.com/vpc/pricing
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

SHORTEST = timedelta(seconds=60)
FREE_WITHIN = timedelta(hours=1)
VOLUME_USD_PER_GIB_MONTH, HOURS_OF_A_MONTH = 0.08, 720
ADDRESS_USD_PER_HOUR = 0.005

Price = tuple[datetime, float]
"""Dollars an hour, from that moment on."""


@dataclass
class Charge:
    """What one instance is charged for. `taken`: AWS has ended it, and not its user or itself."""

    instance_id: str
    is_spot: bool
    began_at: datetime
    volume_gib: int
    prices: Sequence[Price]
    ended_at: datetime | None = None
    taken: bool = False

    def usd(self, now: datetime) -> float:
        until = now if self.ended_at is None else max(self.ended_at, self.began_at + SHORTEST)
        free = self.is_spot and self.taken and until - self.began_at < FREE_WITHIN
        return self._attached_usd(until) + (0.0 if free else self._machine_usd(until))

    def _attached_usd(self, until: datetime) -> float:
        volume = self.volume_gib * VOLUME_USD_PER_GIB_MONTH / HOURS_OF_A_MONTH
        return _hours(self.began_at, until) * (volume + ADDRESS_USD_PER_HOUR)

    def _machine_usd(self, until: datetime) -> float:
        spans = pairwise([*self.prices, (until, 0.0)])
        return sum(_hours(max(since, self.began_at), min(to, until)) * usd for (since, usd), (to, _) in spans)


def _hours(since: datetime, until: datetime) -> float:
    return max(timedelta(), until - since) / timedelta(hours=1)
