"""One observation of the cloud, as the input of decisions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from spotrun.instance import Instance
from spotrun.market.observations import Observation
from spotrun.offering import CapacityType, Offering
from spotrun.run.gang import MemberName


class StepSeen(msgspec.Struct, frozen=True, kw_only=True):
    """
    The last step that an attempt's agent reported, by the agent's clock. Unlike a commit, this step may still be lost.
    """

    attempt: int
    step: int
    at: datetime


class World(msgspec.Struct, frozen=True, kw_only=True):
    """
    One observation of the cloud, made between two reads of the ledger.

    `offerings` are the offerings that suit the run. `ready` are the launches whose standby waits to take over. `silent`
    maps a member to how long, in store time, the heartbeat of the member's agent has been unchanged. `open_for` is how
    long the store has accepted writes. `heard` has the last heartbeat of each agent whose instance the cloud no longer
    lists. `step_seen` is the newest step of the current attempt. `steps_total` and `epochs_total` are the totals of the
    whole training, as far as its agents have reported them. `observations` are the market observations of other runs.
    `no_room` is why the run's store does not accept a checkpoint now, "" if it accepts one. `unread` is why the
    offerings are unknown, "" if they are known.
    """

    offerings: tuple[Offering, ...]
    instances: tuple[Instance, ...]
    ready: frozenset[int] = frozenset()
    silent: dict[MemberName, timedelta] = {}
    open_for: timedelta = timedelta.max
    heard: dict[MemberName, datetime] = {}
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
    Return the on-demand price of the same type in the same zone; else its cheapest on-demand price elsewhere; else the
    offering's price.
    """
    same_type = [
        other
        for other in offerings
        if other.capacity_type is CapacityType.ON_DEMAND and other.instance_type == offering.instance_type
    ]
    here = [other for other in same_type if other.zone == offering.zone]
    prices = [other.price_usd_per_hour for other in here or same_type]
    return min(prices, default=offering.price_usd_per_hour)
