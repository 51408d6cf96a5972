"""
Computes the cost of an instance from its time in use and its cloud's billing rule. The results are whole nano-dollars.
No function has side effects.

Only cumulative costs are rounded. The cost of a period is the difference between two of them, so the costs of all
periods always add up to the total.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import UNSET
from msgspec.structs import replace

from spotrun.instance import EndedBy, PriceSegment
from spotrun.run import volume_prices as listed
from spotrun.run.events import HOURS_PER_VOLUME_MONTH, BillingRule

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
SLURM_RULE = BillingRule(
    minimum_s=0,
    free_if_interrupted_within_s=0,
    source="Slurm's own StartTime and EndTime of each job, to the second, at the usd_per_node_hour of its partition",
)


def aws_rule(volume_gib: int, regions: Collection[str]) -> BillingRule:
    """
    Return EC2's billing rule for any of `regions`. It covers the volume and the public address of an instance.

    The bill of a spot instance depends on who ended the instance: "no charge" if EC2 ended it in the first hour,
    "charged for the seconds used" if you ended it. The volume is charged in both cases:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html.

    EC2 bills only the state `running`
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html), but does not report when this
    state began. The state before it is `pending`. If a runner last observed the instance as `pending` at some time, the
    seconds before that time were certainly not billed, and spotrun does not count them. If no runner observed this
    state, spotrun counts the seconds in it too. A spot instance is billed at the spot price that is in effect at the
    time (https://aws.amazon.com/ec2/spot/pricing). The rule does not cover SUSE, which is billed by the hour.
    """
    gp3, address = listed.list_prices("gp3"), listed.list_prices("address of EC2")
    volume = listed.volume_price(gp3.prices, regions)
    return replace(
        EC2_RULE,
        volume_gib=volume_gib,
        volume_usd_per_gib_month=volume.usd_per_gib_month,
        address_usd_per_hour=address.prices[listed.ANY_REGION],
        source=f"EC2 Linux as documented on {gp3.as_of}: per second, 60 s minimum, spot at the price in effect "
        "and free if EC2 interrupts it in its first hour; with a gp3 volume and a public IPv4 address at the prices of "
        f"{volume.where}",
    )


def gcp_rule(volume_gib: int, regions: Collection[str], hyperdisk_families: Collection[str] = ()) -> BillingRule:
    """
    Return Compute Engine's billing rule for any of `regions`. It covers the disk and the public address of an instance.

    A machine is billed from the state RUNNING until it is switched off or deleted: per second, for at least a minute
    (https://cloud.google.com/compute/vm-instance-pricing). A spot machine is billed at the current list price. A spot
    machine that Google preempts in its first minute is free (https://cloud.google.com/compute/docs/instances/spot). The
    disk is billed until it is deleted; the ephemeral address is billed while the machine runs.

    The machines of `hyperdisk_families` have no Persistent Disk. They get a Hyperdisk instead, at its baseline speed.
    """
    disk, address = listed.list_prices("pd-balanced"), listed.list_prices("address of Compute Engine")
    volume = listed.volume_price(disk.prices, regions)
    hyperdisk = listed.volume_price({**disk.prices, **listed.list_prices("hyperdisk-balanced").prices}, regions)
    return replace(
        COMPUTE_ENGINE_RULE,
        volume_gib=volume_gib,
        volume_usd_per_gib_month=_per_30_days(volume),
        family_volume_usd_per_gib_month=dict.fromkeys(hyperdisk_families, _per_30_days(hyperdisk)) or UNSET,
        address_usd_per_hour=address.prices[listed.ANY_REGION],
        spot_address_usd_per_hour=address.spot[listed.ANY_REGION],
        source=f"Compute Engine as documented on {disk.as_of}: per second from RUNNING, 60 s minimum, spot at "
        "its list price and free if Google preempts it in its first minute; with a boot disk until it is "
        f"deleted, and an external IPv4 address, at the prices of {volume.where}",
    )


def _per_30_days(volume: listed.VolumePrice) -> Decimal:
    """Convert a price per month of Google to one per month of `BillingRule`."""
    return to_nano(volume.usd_per_gib_month * HOURS_PER_VOLUME_MONTH / listed.GOOGLES_MONTH_HOURS)


def machine_alone(rule: BillingRule) -> BillingRule:
    """Return the rule without the costs of an instance's disk and address."""
    return replace(without_address(rule), volume_gib=0)


def without_address(rule: BillingRule) -> BillingRule:
    return replace(rule, address_usd_per_hour=ZERO, spot_address_usd_per_hour=None)


def exact_seconds(duration: timedelta) -> Decimal:
    """Convert a duration to seconds exactly, without floats."""
    return Decimal(duration // timedelta(microseconds=1)) / 1_000_000


def to_nano(amount_usd: Decimal) -> Decimal:
    return amount_usd.quantize(NANO_DOLLAR)


def hourly(price_usd_per_hour: Decimal, duration: timedelta) -> Decimal:
    """Return the cost of `duration` at an hourly price, in whole nano-dollars."""
    return to_nano(price_usd_per_hour * exact_seconds(duration) / SECONDS_PER_HOUR)


def metered(prices: Sequence[PriceSegment], start: datetime, end: datetime) -> Decimal:
    """
    Return the cost from `start` to `end`, at the price in effect at each moment. Time before the first price began is
    billed at the first price.
    """
    total = ZERO
    for index, segment in enumerate(prices):
        since = start if index == 0 else max(start, segment.since)
        until = min(end, prices[index + 1].since) if index + 1 < len(prices) else end
        if until > since:
            total += segment.usd_per_hour * exact_seconds(until - since) / SECONDS_PER_HOUR
    return to_nano(total)


def switched_off_at(prices: Sequence[PriceSegment]) -> datetime | None:
    """
    Return the time at which the machine ended, if its disk was kept. The last of `prices` is then 0, and begins at that
    time. Return None if the machine and the disk ended together.
    """
    return prices[-1].since if len(prices) > 1 and not prices[-1].usd_per_hour else None


def until_switched_off(prices: Sequence[PriceSegment], off_since: datetime) -> tuple[PriceSegment, ...]:
    """
    Return `prices` with the machine's price set to 0 from the time at which the instance was switched off. From then
    on, the cloud may bill the disk, but not the machine.
    """
    charged = [each for each in prices if each.since < off_since] or prices[:1]
    return (*charged, PriceSegment(since=off_since, usd_per_hour=ZERO))


class Meter:
    """
    Computes the bill of one instance, with its disk and address, at any moment. The bill never decreases over time.

    `ended_at` is the time at which the disk was deleted. Usually the machine ended at the same time. If it ended
    earlier, the last of `prices` is 0, and begins at the machine's end.
    """

    def __init__(
        self,
        rule: BillingRule,
        prices: Sequence[PriceSegment],
        billed_from: datetime | None,
        ended_at: datetime | None,
        ended_by: EndedBy | None,
    ) -> None:
        self._rule = rule
        off_at = switched_off_at(prices)
        self._prices = prices if off_at is None else prices[:-1]
        self._machine_ended_at = ended_at if off_at is None else off_at
        self.billed_from = billed_from
        self.ended_at = ended_at
        self._free = billed_from is not None and self._forgiven(billed_from, ended_by)

    def _forgiven(self, billed_from: datetime, ended_by: EndedBy | None) -> bool:
        if self._machine_ended_at is None or ended_by is not EndedBy.CLOUD:
            return False
        return (self._machine_ended_at - billed_from).total_seconds() < self._rule.free_if_interrupted_within_s

    def cost_until(self, moment: datetime) -> Decimal:
        """
        Return the dollars that are due by `moment`. If the machine ends before the minimum billed time is over, the
        rest of this minimum is added at its end.
        """
        if self.billed_from is None or moment <= self.billed_from:
            return ZERO
        until = self._until(moment, self._machine_ended_at)
        attached = hourly(self._rule.attached_usd_per_hour, until - self.billed_from) + self._left_behind(until, moment)
        return attached if self._free else attached + metered(self._prices, self.billed_from, until)

    def time_until(self, moment: datetime) -> timedelta:
        """Return how long the machine has been billed at `moment`; zero if the cloud does not charge for it."""
        if self.billed_from is None or moment <= self.billed_from or self._free:
            return timedelta(0)
        return self._until(moment, self._machine_ended_at) - self.billed_from

    def _left_behind(self, machine_until: datetime, moment: datetime) -> Decimal:
        """Return what the disk alone costs from the machine's end to `moment`. The address is no longer billed then."""
        alone = self._until(moment, self.ended_at) - machine_until
        return hourly(self._rule.volume_usd_per_hour, alone) if alone > timedelta(0) else ZERO

    def _until(self, moment: datetime, end: datetime | None) -> datetime:
        """
        Return the time up to which a machine or disk that ends at `end` is billed at `moment`. Before `end`, this is
        `moment` itself; later, it is `end` or the end of the minimum billed time, whichever is later.
        """
        assert self.billed_from is not None
        if end is None or moment < end:
            return moment
        return max(end, self.billed_from + timedelta(seconds=self._rule.minimum_s))
