"""In which order a run would ask for the offerings there are, and why: for people, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from spotrun.market import World, affordable
from spotrun.offering import CapacityType, Offering
from spotrun.policy.places import on_demand_now, spot_now
from spotrun.policy.situation import Facts
from spotrun.sightings import Kind, Sighting
from spotrun.spec import RunSpec
from spotrun.state import RunState
from spotrun.units import format_duration

SAW = {Kind.LOST: "an instance was lost", Kind.REFUSED: "a run was refused"}


class Considered(msgspec.Struct, frozen=True):
    """An offering, and why it would be taken or not."""

    offering: Offering
    why: str


def considered(unborn: RunState, spec: RunSpec, world: World) -> list[Considered]:
    """What suits a run that is about to be launched: first what it may ask for, in the order of asking."""
    assert unborn.created_at is not None
    now = unborn.created_at
    facts = Facts(unborn, spec, world, now)
    spot = [] if spec.resources.spot_policy == "on-demand" else spot_now(facts)
    on_demand = [] if spec.resources.spot_policy == "spot" else on_demand_now(facts)
    no_spot = _when_without_spot(spec)
    asked = [
        Considered(offering, _why_asked(offering, order, facts.just_lost.get(offering.pool), now, no_spot))
        for order in (spot, on_demand)
        for offering in order
    ]
    named = {each.offering for each in asked}
    rest = [Considered(found, _why_not(found, spec)) for found in world.offerings if found not in named]
    return asked + rest


def _when_without_spot(spec: RunSpec) -> str:
    """When such a run goes on demand."""
    if spec.resources.spot_policy == "on-demand":
        return "asked first: spot_policy is on-demand"
    if spec.policy.deadline is not None:
        return "when the deadline leaves no time for spot"
    return f"when there was no spot for {format_duration(spec.policy.on_demand_after)}"


def _why_asked(offering: Offering, order: list[Offering], trouble: Sighting | None, now: datetime, no_spot: str) -> str:
    spot, first = offering.capacity_type is CapacityType.SPOT, offering == order[0]
    if trouble is not None:
        place = "asked all the same, there is no other" if first else "asked last"
        return f"{place}: {SAW[trouble.kind]} there {_minutes(now - trouble.at)} ago"
    if not spot:
        return no_spot if first else "where the one before has none"
    if first:
        cheapest = "the cheapest spot" if not _cheaper(offering, order) else "cheaper spot would last less, or was lost"
        return f"asked first: {cheapest}"
    dearer_before = any(other.price_usd_per_hour > offering.price_usd_per_hour for other in _before(offering, order))
    return (
        "later than dearer spot: it would last less" if dearer_before else "where the ones before have none, or lost us"
    )


def _minutes(ago: timedelta) -> str:
    return format_duration(timedelta(minutes=max(1, ago // timedelta(minutes=1))))


def _cheaper(offering: Offering, order: Iterable[Offering]) -> bool:
    return any(other.price_usd_per_hour < offering.price_usd_per_hour for other in order)


def _before(offering: Offering, order: list[Offering]) -> list[Offering]:
    return order[: order.index(offering)]


def _why_not(offering: Offering, spec: RunSpec) -> str:
    if not affordable(offering, spec.resources.max_price):
        return "above max_price"
    return f"spot_policy is {spec.resources.spot_policy}"
