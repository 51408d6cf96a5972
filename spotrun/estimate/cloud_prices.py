"""Looks up the clouds' current and recent prices, and enters them in a cost study."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from spotrun.estimate.cost_study import CostStudy, Place, Rented, Spot
from spotrun.market.price_history import PriceRange
from spotrun.market.quotes import Quote, Quotes
from spotrun.offering import CapacityType


def with_prices(study: CostStudy, quotes_of: Callable[[str, Rented], Quotes]) -> CostStudy:
    """
    Return the study with each `rented` key replaced by the cloud's prices. `quotes_of` fetches the prices of one place;
    it is called with the place's name and the value of `rented`.
    """

    def priced(name: str, place: Place) -> Place:
        return place if place.rented is None else _priced(place, place.rented, quotes_of(name, place.rented))

    return study.with_places(priced)


def _priced(place: Place, rented: Rented, found: Quotes) -> Place:
    """
    Return the place with its prices. The on-demand price is that of the cheapest zone. The spot prices are the mean,
    lowest and highest price over the last `rented.days` days, in the zone with the lowest mean. If a zone's past prices
    are unknown, its current price serves as its mean.
    """
    quotes = found.quotes
    on_demand = [quote for quote in quotes if quote.offering.capacity_type is CapacityType.ON_DEMAND]
    spot = [quote for quote in quotes if quote.offering.capacity_type is CapacityType.SPOT]
    hourly = [quote.offering.price_usd_per_hour for quote in on_demand]
    hourly += [quote.on_demand_usd_per_hour for quote in quotes if quote.on_demand_usd_per_hour is not None]
    cheapest = min(spot, key=lambda quote: _spot(quote, rented, found).usd_per_hour, default=None)
    changes = {
        "rented": None,
        "usd_per_hour": min(hourly, default=None),
        "spot": None if cheapest is None else _spot(cheapest, rented, found),
        "as_of": f"{found.at:%Y-%m-%d %H:%M} UTC",
        "source": ", ".join(
            [_source(rented, quotes), *([] if cheapest is None else [_spread(cheapest, rented, found)])]
        ),
    }
    return place.model_copy(update=changes)


def _lately(quote: Quote, rented: Rented, found: Quotes) -> PriceRange | None:
    return quote.over(timedelta(days=float(rented.days)), found.at)


def _spread(quote: Quote, rented: Rented, found: Quotes) -> str:
    """
    Return a text for the study's reader that says how many days the spot prices cover. They may be fewer than the study
    requests.
    """
    if _lately(quote, rented, found) is None:
        return "spot as it is now"
    known = min(timedelta(days=float(rented.days)), found.at - quote.history[0].since)
    return f"spot over {known / timedelta(days=1):.0f} days"


def _spot(quote: Quote, rented: Rented, found: Quotes) -> Spot:
    now, lately = quote.offering.price_usd_per_hour, _lately(quote, rented, found)
    return Spot.model_construct(
        usd_per_hour=now if lately is None else lately.mean,
        low=None if lately is None else lately.min,
        high=None if lately is None else lately.max,
        interruptions_per_hour=rented.interruptions_per_hour,
        restart=rented.restart,
    )


def _source(rented: Rented, quotes: tuple[Quote, ...]) -> str:
    where = rented.region or "all regions asked"
    lists = sorted({quote.offering.price_list for quote in quotes} - {""})
    simulated = any(quote.offering.simulated for quote in quotes)
    asked = (
        f"{rented.cloud} for {rented.instance_type} in {where}{', SIMULATED: nobody bills them' if simulated else ''}"
    )
    return ", ".join([asked, *lists])
