"""Fills in a cost study's prices from the tables in `spotrun.estimate.price_lists`."""

from __future__ import annotations

from collections.abc import Callable

from spotrun.estimate.assumptions import plain_number
from spotrun.estimate.cost_study import CostStudy, Listed, Place, Spot, Subscription
from spotrun.estimate.price_lists import ListPrice


def with_list_prices(study: CostStudy, price_of: Callable[[str, Listed], ListPrice]) -> CostStudy:
    """
    Return the study with each `listed` price replaced by the price in spotrun's list. `price_of` looks up this price,
    given the name of the cloud or machine and the value of `listed`.
    """

    def priced(name: str, place: Place) -> Place:
        return place if place.listed is None else _priced(place, place.listed, price_of(name, place.listed))

    return study.with_places(priced)


def _priced(place: Place, listed: Listed, found: ListPrice) -> Place:
    changes = {
        "listed": None,
        "usd_per_hour": None if found.usd_per_hour is None else found.usd_per_hour * listed.count,
        "subscription": _subscription(listed, found),
        "spot": _spot(listed, found),
        "as_of": found.as_of,
        "source": _source(listed, found),
    }
    return place.model_copy(update=changes)


def _subscription(listed: Listed, found: ListPrice) -> Subscription | None:
    if found.usd_per_month is None:
        return None
    return Subscription.model_construct(
        usd_per_month=found.usd_per_month * listed.count, hours_per_month=found.hours_per_month
    )


def _spot(listed: Listed, found: ListPrice) -> Spot | None:
    if found.spot_usd_per_hour is None:
        return None
    return Spot.model_construct(
        usd_per_hour=found.spot_usd_per_hour * listed.count,
        interruptions_per_hour=listed.interruptions_per_hour,
        restart=listed.restart,
    )


def _source(listed: Listed, found: ListPrice) -> str:
    several = "" if listed.count == 1 else f"{plain_number(listed.count)} x "
    where = f" in {found.region}" if found.region else ""
    return f"table {listed.table}, {several}{found.type}{where} ({found.what}): {found.source}"
