"""The prices of a rented place, from what its cloud asks now and has asked lately."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from spotrun.market.quotes import LOOKED_BACK, Quote, Quotes
from spotrun.offering import CapacityType
from spotrun.spec.cost_study import CostStudy, Place, Rented, Spot


def with_prices(study: CostStudy, quotes_of: Callable[[Rented], Quotes]) -> CostStudy:
    """The study with the prices of all rented places."""
    places = {
        name: place if place.rented is None else _priced(place, quotes_of(place.rented))
        for name, place in study.places.items()
    }
    return study.model_copy(update={"places": places})


def _priced(place: Place, found: Quotes) -> Place:
    """
    On demand in the cheapest zone. Spot in the zone with the lowest mean: the mean, the lowest and the highest price of
    the last 90 days; its price of now where nobody knows those.
    """
    quotes = found.quotes
    on_demand = [quote for quote in quotes if quote.offering.capacity_type is CapacityType.ON_DEMAND]
    spot = [_spot(quote, found) for quote in quotes if quote.offering.capacity_type is CapacityType.SPOT]
    hourly = [quote.offering.price_usd_per_hour for quote in on_demand]
    hourly += [quote.on_demand_usd_per_hour for quote in quotes if quote.on_demand_usd_per_hour is not None]
    cheapest = min(spot, key=lambda each: each.usd_per_hour, default=None)
    paid = min(hourly) if hourly else Decimal(0) if cheapest is None else cheapest.usd_per_hour
    changes = {"rented": None, "usd_per_hour": paid, "spot": cheapest, "as_of": f"{found.at:%Y-%m-%d}"}
    return place.model_copy(update={**changes, "source": place.source or _source(quotes)})


def _spot(quote: Quote, found: Quotes) -> Spot:
    lately = quote.over(LOOKED_BACK, found.at)
    if lately is None:
        return Spot.model_construct(usd_per_hour=quote.offering.price_usd_per_hour)
    return Spot.model_construct(usd_per_hour=lately.mean, low=lately.min, high=lately.max)


def _source(quotes: tuple[Quote, ...]) -> str | None:
    lists = sorted({quote.offering.price_list for quote in quotes} - {""})
    return ", ".join(lists) or None
