"""
Computes the time and cost of each training in each place of a cost study. Also computes on how many days a month the
user must use their own machine before it is cheaper than a rented one.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal

import msgspec
from msgspec.structs import replace

from spotrun.estimate.cost_study import CostStudy, Place, Spot
from spotrun.estimate.prices import usd_per_hour
from spotrun.estimate.speeds import samples_per_second

DAYS_MAX = 31
SPOT = "spot"


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """
    The cost of one complete training in one place of the study.

    `capacity` is `on-demand`, `spot`, `own` or `subscription`; `months` are the paid months of a subscription. `hours`
    are hours of training. `usd_low` and `usd_high` are the costs at the lowest and the highest spot price; None if
    these prices are unknown. `samples_per_usd` is None if the training costs nothing. `normalised_time` and
    `normalised_cost` are relative to the study's base; None if the base has no speed for this training, or costs
    nothing.
    """

    place: str
    training: str
    capacity: str
    usd_per_hour: Decimal
    samples_per_second: Decimal
    hours: Decimal
    usd: Decimal
    usd_low: Decimal | None = None
    usd_high: Decimal | None = None
    months: Decimal | None = None
    samples_per_usd: Decimal | None
    normalised_time: Decimal | None = None
    normalised_cost: Decimal | None = None


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """
    The break-even between the user's machine `own` and the rented place `rival`. If `own` is used on `days_per_month`
    days a month, a sample costs the same on `own` as at `rival`; if `own` is used on more days, a sample costs less on
    `own`. `days_per_month` is None if `own` can never be cheaper, because its electricity alone costs at least as much
    as `rival`.
    """

    own: str
    rival: str
    capacity: str
    training: str
    days_per_month: Decimal | None


def base_of(study: CostStudy) -> str:
    return study.base or next(iter(study.places))


def costs(study: CostStudy) -> Iterator[Cost]:
    """Yield the costs of each training, the cheapest place first."""
    for training in study.trainings:
        found = (cost for place in study.places for cost in costs_at(study, place, training))
        yield from sorted(found, key=lambda cost: cost.usd)


def costs_at(study: CostStudy, place: str, training: str) -> Iterator[Cost]:
    """
    Yield the cost of a training at a place, first at the ordinary price and then at the spot price, as far as the place
    has them. Yield nothing if the training's speed at the place is unknown.
    """
    base = next(_costs(study, base_of(study), training), None)
    for cost in _costs(study, place, training):
        yield replace(
            cost,
            normalised_time=None if base is None else cost.hours / base.hours,
            normalised_cost=None if base is None or not base.usd else cost.usd / base.usd,
        )


def _costs(study: CostStudy, place: str, training: str) -> Iterator[Cost]:
    speed = samples_per_second(study, place, training)
    if speed is None:
        return
    found, samples = study.places[place], study.trainings[training].samples_in_all
    hours, capacity = samples / speed / 3600, capacity_of(found)
    cost = Cost(
        place=place,
        training=training,
        capacity=capacity,
        usd_per_hour=usd_per_hour(found),
        samples_per_second=speed,
        hours=hours,
        usd=hours * usd_per_hour(found),
        samples_per_usd=None,
    )
    if found.subscription is not None:
        months = (hours / found.subscription.hours_per_month).to_integral_value(ROUND_CEILING)
        cost = replace(cost, months=months, usd=months * found.subscription.usd_per_month)
    if capacity != SPOT:
        yield _valued(cost, samples)
    if found.spot is not None:
        yield _valued(_on_spot(cost, found.spot), samples)


def _on_spot(cost: Cost, spot: Spot) -> Cost:
    hours = cost.hours * drag(spot)
    return replace(
        cost,
        capacity=SPOT,
        usd_per_hour=spot.usd_per_hour,
        hours=hours,
        usd=hours * spot.usd_per_hour,
        usd_low=None if spot.low is None else spot.low * hours,
        usd_high=None if spot.high is None else spot.high * hours,
    )


def _valued(cost: Cost, samples: Decimal) -> Cost:
    return replace(cost, samples_per_usd=samples / cost.usd if cost.usd else None)


def capacity_of(place: Place) -> str:
    """
    Return the kind of capacity to which a place's ordinary price applies: `own`, `subscription` or `on-demand`. If the
    place has only a spot price, return `spot`.
    """
    if place.own is not None:
        return "own"
    if place.subscription is not None:
        return "subscription"
    return "on-demand" if place.usd_per_hour is not None or place.parts is not None else SPOT


def drag(spot: Spot) -> Decimal:
    """
    Return the factor, at least 1, by which interruptions lengthen a training.

        1 / (1 - interruptions an hour * hours of a restart)
    """
    return 1 / (1 - spot.lost_share)


def break_evens(study: CostStudy) -> Iterator[BreakEven]:
    """
    Yield the break-even between each machine of the user and each rented place, for each training whose speed is known
    at both.
    """
    for own, machine in study.places.items():
        rivals = [name for name, place in study.places.items() if place.own is None] if machine.own is not None else []
        for training in study.trainings:
            for rival in rivals:
                yield from _against(study, own, rival, training)


def _against(study: CostStudy, own: str, rival: str, training: str) -> Iterator[BreakEven]:
    for cost in _costs(study, rival, training):
        if samples_per_second(study, own, training) is not None:
            days = break_even_days(study, own, cost)
            yield BreakEven(own=own, rival=rival, capacity=cost.capacity, training=training, days_per_month=days)


def break_even_days(study: CostStudy, own: str, rival: Cost) -> Decimal | None:
    """
    Return the number of days per month for which `own` costs as much as `rival` (see `BreakEven`). Return None if `own`
    is never cheaper, because its electricity alone costs at least as much as `rival`.

        fixed dollars a month / (hours a day * gain)
        gain = what the rival costs for the samples of one hour on `own` - dollars of electricity an hour
    """
    machine, speed = study.places[own].own, samples_per_second(study, own, rival.training)
    assert machine is not None
    assert speed is not None
    paid = Decimal(0) if rival.samples_per_usd is None else speed * 3600 / rival.samples_per_usd
    gained = paid - machine.power_usd_per_hour
    return machine.fixed_usd_per_month / (machine.hours_per_day * gained) if gained > 0 else None
