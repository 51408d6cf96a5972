"""Explains to the user, before a launch, in which order a run would request the offerings, and why."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from spotrun.market.observations import Fate
from spotrun.market.world import affordable
from spotrun.offering import CapacityType, Offering
from spotrun.policy.cross_region import reservable, transfer
from spotrun.policy.deadline_guarantee import too_slow
from spotrun.policy.facts import Facts
from spotrun.policy.owned_machine import way_home
from spotrun.policy.pools import just_lost
from spotrun.policy.ranking import on_demand_now, spot_now
from spotrun.policy.throughput import choice, kind_of, times_first
from spotrun.spec.model import RunSpec
from spotrun.units import format_duration, plain_usd, to_the_cent

SAW = {Fate.LOST: "an instance was lost", Fate.REFUSED: "a run was refused"}


class ConsideredOffering(msgspec.Struct, frozen=True):
    offering: Offering
    why: str


def considered(facts: Facts) -> list[ConsideredOffering]:
    """
    Return the offerings that suit a run before its launch, with the reasons for their order. The offerings that the run
    can request come first, in the order in which it would request them.
    """
    spec = facts.spec
    spot = [] if spec.resources.spot_policy == "on-demand" else spot_now(facts)
    on_demand = [] if spec.resources.spot_policy == "spot" else on_demand_now(facts)
    no_spot = _when_without_spot(spec)
    asked = [
        ConsideredOffering(offering, _why_asked(offering, order, facts, no_spot) + _far_away(offering, facts))
        for order in (spot, on_demand)
        for offering in order
    ]
    home = next((each for each in facts.world.offerings if each.capacity_type is CapacityType.OWN), None)
    if home is not None:
        first = way_home(facts) is not None
        when = "asked first: it is free" if first else "when the deadline can be met there"
        taken = f"asked while {home.instance_type} is taken: "
        later = [ConsideredOffering(each.offering, each.why.replace("asked first: ", taken)) for each in asked]
        asked = [ConsideredOffering(home, when), *(later if first else asked)]
    named = {each.offering for each in asked}
    rest = [ConsideredOffering(found, _why_not(found, facts)) for found in facts.world.offerings if found not in named]
    told = [*asked, *rest]
    return [msgspec.structs.replace(each, why=each.why + _of_speed(each.offering, facts)) for each in told]


def _of_speed(offering: Offering, facts: Facts) -> str:
    """
    Describe the assumed speed of an offering's kind relative to the first kind that the job allows. Return "" for the
    first kind.
    """
    first, kind = next(iter(choice(facts)), None), kind_of(facts, offering)
    if kind is None or kind == first:
        return ""
    return f"; assumed to train {times_first(facts, offering):.2g} x as fast as {first}"


def _far_away(offering: Offering, facts: Facts) -> str:
    """
    Describe the known cost of the traffic between `offering` and the bucket. Return "" if the offering is in the
    bucket's region.
    """
    created, there = facts.state.created, transfer(facts, offering.region)
    if not _far(offering, facts):
        return ""
    rate = created.storage.write_usd_per_gb(offering.region)
    start = f", {to_the_cent(there.start_usd)} a start" if there.start_usd else ""
    return f"; the bucket is in {created.storage.region}: each GB of a checkpoint costs ${plain_usd(rate)} more{start}"


def _when_without_spot(spec: RunSpec) -> str:
    if spec.resources.spot_policy == "on-demand":
        return "asked first: spot_policy is on-demand"
    if spec.policy.deadline is not None:
        return "when the deadline leaves no time for spot"
    return f"when there was no spot for {format_duration(spec.policy.on_demand_after)}"


def _why_asked(offering: Offering, order: list[Offering], facts: Facts, no_spot: str) -> str:
    spot, first = offering.capacity_type is CapacityType.SPOT, offering == order[0]
    trouble = just_lost(facts).get(offering.pool)
    if trouble is not None:
        place = "asked anyway, as there is no other" if first else "asked last"
        return f"{place}: {SAW[trouble.kind]} there {_minutes(facts.now - trouble.at)} ago"
    if not spot:
        return no_spot if first else "if the one above has no capacity"
    if first:
        cheaper = [other for other in order if other.price_usd_per_hour < offering.price_usd_per_hour]
        return f"asked first: {_why_not_those(cheaper, offering, facts)}"
    before = order[: order.index(offering)]
    if times_first(facts, offering) != times_first(facts, order[0]):
        return "if those above have no capacity: it is expected to train less per dollar"
    if all(other.price_usd_per_hour <= offering.price_usd_per_hour for other in before):
        return "if those above have no capacity, or the run lost an instance there"
    return f"later than dearer spot: it {'is far from its bucket' if _far(offering, facts) else 'would last less'}"


def _why_not_those(cheaper: list[Offering], offering: Offering, facts: Facts) -> str:
    if any(times_first(facts, each) < times_first(facts, offering) for each in cheaper):
        return "the most training per dollar, by published speeds"
    if not cheaper:
        return "the cheapest spot"
    far = "is far from the bucket, " if any(_far(each, facts) for each in cheaper) else ""
    return f"cheaper spot {far}would last less, or was lost"


def _far(offering: Offering, facts: Facts) -> bool:
    return facts.state.created.storage.crosses(offering.region)


def _minutes(ago: timedelta) -> str:
    return format_duration(timedelta(minutes=max(1, ago // timedelta(minutes=1))))


def _why_not(offering: Offering, facts: Facts) -> str:
    if not affordable(offering, facts.spec.resources.max_price):
        return "above max_price"
    if kind_of(facts, offering) in too_slow(facts):
        return "too slow for the deadline, as far as is known"
    if not reservable(facts, offering):
        return "only once a checkpoint's size is known: the budget has to cover sending it to another region"
    return f"spot_policy is {facts.spec.resources.spot_policy}"
