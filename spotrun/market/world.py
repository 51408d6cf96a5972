"""Types for a runner's observation of the cloud, from which it decides what to do."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from spotrun.instance import Instance, PriceSegment
from spotrun.market.observations import Observation
from spotrun.offering import CapacityType, Offering
from spotrun.run.gang import MemberName


class StepSeen(msgspec.Struct, frozen=True, kw_only=True):
    """
    The last step that the agent of an attempt reported, at the time `at` on the agent's clock. The step may not be
    committed yet, so it may still be lost.
    """

    attempt: int
    step: int
    at: datetime


class World(msgspec.Struct, frozen=True, kw_only=True):
    """
    One observation of the cloud, made between two reads of the ledger.

    - `offerings`: the offerings that suit the run.
    - `ready`: the launches whose standby is ready and waits to take over.
    - `silent`: for each member, the time on the store's clock since its agent's heartbeat last changed.
    - `open_for`: the time for which the store has accepted all writes without interruption.
    - `heard`: for each agent whose instance the cloud no longer lists, the time of its last heartbeat.
    - `spot_prices`: for each spot instance that the cloud no longer lists, its prices from its start to the end of its
      time-to-live; absent if the cloud has no price history.
    - `step_seen`: the newest step of the current attempt.
    - `steps_total`, `epochs_total`: the totals of the whole training, if its agents have reported them.
    - `observations`: the market observations of other runs.
    - `no_room`: the reason why the run's store does not accept a checkpoint now; "" if it accepts one.
    - `unread`: the reason why the offerings are unknown; "" if they are known.
    """

    offerings: tuple[Offering, ...]
    instances: tuple[Instance, ...]
    ready: frozenset[int] = frozenset()
    silent: dict[MemberName, timedelta] = {}
    open_for: timedelta = timedelta.max
    heard: dict[MemberName, datetime] = {}
    spot_prices: dict[MemberName, tuple[PriceSegment, ...]] = {}
    step_seen: StepSeen | None = None
    steps_total: float | None = None
    epochs_total: int | None = None
    observations: tuple[Observation, ...] = ()
    no_room: str = ""
    unread: str = ""


def affordable(offering: Offering, max_price: Decimal | None) -> bool:
    return max_price is None or offering.price_usd_per_hour <= max_price


def on_demand_price(offering: Offering, offerings: Iterable[Offering]) -> Decimal:
    """
    Return the on-demand price of the offering's instance type in the offering's zone. If the type is not offered on
    demand in that zone, return the type's lowest on-demand price in all other zones. If no zone offers the type on
    demand, return the offering's own price.
    """
    same_type = [
        other
        for other in offerings
        if other.capacity_type is CapacityType.ON_DEMAND and other.instance_type == offering.instance_type
    ]
    here = [other for other in same_type if other.zone == offering.zone]
    prices = [other.price_usd_per_hour for other in here or same_type]
    return min(prices, default=offering.price_usd_per_hour)
