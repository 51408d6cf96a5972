"""What a decision may know of the outside world, all at one moment; and which offerings suit a run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from spotrun.instance import Instance
from spotrun.market.observations import Observation
from spotrun.market.wishes import wishes_of
from spotrun.offering import CapacityType, Offering
from spotrun.run.gang import MemberName
from spotrun.spec.model import ResourcesSpec, RunSpec


class StepSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The last step that an attempt's agent reported, by its own clock. It may be lost again; a commit is not."""

    attempt: int
    step: int
    at: datetime


class World(msgspec.Struct, frozen=True, kw_only=True):
    """
    One observation of the cloud, made between two reads of the ledger.

    `offerings` are those that suit the run. `ready` are the launches whose standby waits to take over. `silent` maps a
    member to how long, by store time, its agent's heartbeat has not changed. `open_for` is for how long the store has
    taken what is written. `heard` has when an agent spoke last whose
    instance the cloud no longer lists. `step_seen` is the newest of the current attempt, and `steps_total` and
    `epochs_total` how many the whole training will have, as far as its agents know. `observations` are what other runs
    have seen of the market. `no_room` says why the run's store takes no checkpoint now, if it does not. `unread` says
    why nothing is known of what is offered.
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


def suitable(offerings: Iterable[Offering], spec: RunSpec) -> list[Offering]:
    """
    The offerings that satisfy the run's resources, cheapest first, whatever their capacity type. What a job asks of its
    cloud is not asked of a machine of the user's own.
    """
    cloud, wishes = spec.resources.cloud, [*wishes_of(spec.resources)]
    found = (
        each
        for each in offerings
        if each.capacity_type is CapacityType.OWN or (each.cloud == cloud and all(wish.fits(each) for wish in wishes))
    )
    return sorted(found, key=_by_price)


def _by_price(offering: Offering) -> tuple[Decimal, str, str]:
    return offering.price_usd_per_hour, offering.zone, offering.instance_type


def suits(offering: Offering, wanted: ResourcesSpec) -> bool:
    """Whether one offering is what `resources` asks for; whether it is within max_price is another question."""
    return offering.cloud == wanted.cloud and all(wish.fits(offering) for wish in wishes_of(wanted))


def affordable(offering: Offering, max_price: Decimal | None) -> bool:
    return max_price is None or offering.price_usd_per_hour <= max_price


def on_demand_price(offering: Offering, offerings: Iterable[Offering]) -> Decimal:
    """What the same instance type costs on demand in the same zone; else the cheapest elsewhere, else its own price."""
    same_type = [
        other
        for other in offerings
        if other.capacity_type is CapacityType.ON_DEMAND and other.instance_type == offering.instance_type
    ]
    here = [other for other in same_type if other.zone == offering.zone]
    prices = [other.price_usd_per_hour for other in here or same_type]
    return min(prices, default=offering.price_usd_per_hour)
