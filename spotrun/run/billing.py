"""
Seconds on the meter to dollars, under a dated rule. Pure, and exact: amounts are whole nano-dollars.

Cumulative costs are rounded once and then only subtracted, so parts always sum to their total.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec.structs import replace

from spotrun.instance import EndedBy, PriceSegment
from spotrun.run.events import BillingRule
from spotrun.run.volume_prices import ADDRESS_USD_PER_HOUR, AS_OF, volume_price

NANO_DOLLAR = Decimal("1e-9")
SECONDS_PER_HOUR = 3600
ZERO = Decimal(0)

LOCAL_RULE = BillingRule(
    minimum_s=60,
    free_if_interrupted_within_s=60,
    source="simulated; shaped like Compute Engine's: per second, 60 s minimum, free if preempted in the first minute",
)
EC2_RULE = BillingRule(
    minimum_s=60,
    free_if_interrupted_within_s=3600,
    source="EC2, Linux: per second, 60 s minimum (aws.amazon.com/ec2/pricing/on-demand); spot that EC2 takes in its "
    "first hour is free (docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html)",
)
COMPUTE_ENGINE_RULE = BillingRule(
    minimum_s=60,
    free_if_interrupted_within_s=60,
    source="Compute Engine: per second, 60 s minimum (cloud.google.com/compute/vm-instance-pricing); spot that is "
    "preempted in its first minute is free (cloud.google.com/compute/docs/instances/spot)",
)


def aws_rule(volume_gib: int, regions: Collection[str]) -> BillingRule:
    """
    EC2 with what hangs on an instance, in any of `regions`.

    Who ended a spot instance decides: "no charge" in the first hour where EC2 did, "charged for the seconds used" where
    you did, and the volume is charged either way:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html.
    Only `running` is billed (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html). EC2 does
    not tell when that began: seconds of `pending` in which nobody looked are counted too. The spot price is the one in
    effect (https://aws.amazon.com/ec2/spot/pricing). SUSE, which is billed by the hour, is not covered.
    """
    volume = volume_price(regions)
    return replace(
        EC2_RULE,
        volume_gib=volume_gib,
        volume_usd_per_gib_month=volume.usd_per_gib_month,
        address_usd_per_hour=ADDRESS_USD_PER_HOUR,
        source=f"EC2 Linux as documented on {AS_OF}: per second, 60 s minimum, spot at the price in effect and free if "
        "EC2 interrupts it in its first hour; with a gp3 volume and a public IPv4 address at the prices of "
        f"{volume.where}",
    )


def machine_alone(rule: BillingRule) -> BillingRule:
    """The same without what is attached to an instance: its disk and its address."""
    return replace(rule, volume_gib=0, address_usd_per_hour=ZERO)


def exact_seconds(duration: timedelta) -> Decimal:
    """A duration in seconds without passing through a float."""
    return Decimal(duration // timedelta(microseconds=1)) / 1_000_000


def to_nano(amount_usd: Decimal) -> Decimal:
    return amount_usd.quantize(NANO_DOLLAR)


def hourly(price_usd_per_hour: Decimal, duration: timedelta) -> Decimal:
    """What `duration` costs at one hourly price."""
    return to_nano(price_usd_per_hour * exact_seconds(duration) / SECONDS_PER_HOUR)


def metered(prices: Sequence[PriceSegment], start: datetime, end: datetime) -> Decimal:
    """What the meter shows from `start` to `end`, each stretch at the price in effect; the first one also before it."""
    total = ZERO
    for index, segment in enumerate(prices):
        since = start if index == 0 else max(start, segment.since)
        until = min(end, prices[index + 1].since) if index + 1 < len(prices) else end
        if until > since:
            total += segment.usd_per_hour * exact_seconds(until - since) / SECONDS_PER_HOUR
    return to_nano(total)


class Meter:
    """The bill of one instance, with what is attached to it, as it grows: never less later than earlier."""

    def __init__(
        self,
        rule: BillingRule,
        prices: Sequence[PriceSegment],
        billed_from: datetime | None,
        ended_at: datetime | None,
        ended_by: EndedBy | None,
    ) -> None:
        self._rule = rule
        self._prices = prices
        self.billed_from = billed_from
        self.ended_at = ended_at
        self._free = billed_from is not None and self._forgiven(billed_from, ended_at, ended_by)

    def _forgiven(self, billed_from: datetime, ended_at: datetime | None, ended_by: EndedBy | None) -> bool:
        if ended_at is None or ended_by is not EndedBy.CLOUD:
            return False
        return (ended_at - billed_from).total_seconds() < self._rule.free_if_interrupted_within_s

    def cost_until(self, moment: datetime) -> Decimal:
        """Dollars accrued by `moment`. What the minimum adds to a short life accrues at its end."""
        if self.billed_from is None or moment <= self.billed_from:
            return ZERO
        until = self._metered_until(moment)
        attached = hourly(self._rule.attached_usd_per_hour, until - self.billed_from)
        return attached if self._free else attached + metered(self._prices, self.billed_from, until)

    def time_until(self, moment: datetime) -> timedelta:
        """For how long the machine itself is billed by `moment`: not at all if the cloud forgives it."""
        if self.billed_from is None or moment <= self.billed_from or self._free:
            return timedelta(0)
        return self._metered_until(moment) - self.billed_from

    def _metered_until(self, moment: datetime) -> datetime:
        """Up to when the meter runs: `moment`, or its end, which the minimum may put off."""
        assert self.billed_from is not None
        if self.ended_at is None or moment < self.ended_at:
            return moment
        return max(self.ended_at, self.billed_from + timedelta(seconds=self._rule.minimum_s))
