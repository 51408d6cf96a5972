"""
Reads EC2's on-demand prices and the spot prices of the last 90 days, in given regions. This works in any account, even
in one without spotrun's roles and networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.catalog import Catalog
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.price_list import PriceList
from spotrun.clouds.aws.prices import SpotPool, SpotPrices, spot_prices
from spotrun.clouds.aws.quota_headroom import Headroom, read_headroom
from spotrun.clouds.regions import Regions
from spotrun.errors import CloudError
from spotrun.instance import PriceSegment
from spotrun.market.quotes import LOOKED_BACK, Quote, Quotes
from spotrun.offering import CapacityType, Offering
from spotrun.units import some_of


def read_quotes(config: AwsConfig, clock: Clock, accelerators: Sequence[str]) -> Quotes:
    """
    Return quotes for the types in `config.instance_types` or, if it is empty, for all types with accelerators. If
    `accelerators` is not empty, return only types that have exactly one of these accelerators.

    Raises:
        CloudError: no region answers. If at least one answers, the others are left out, and the notes say why. A price
            list or quota that cannot be read leads only to a note, too.
    """
    regions = Regions(config.regions, clock)
    asked = regions.ask(lambda name: _in_region(Region(name, clock), config, clock, accelerators), must_see=())
    found = asked.values()
    quotes = tuple(quote for part in found for quote in part.quotes)
    notes = [note for part in found for note in part.notes]
    notes += [f"{name} is left out: {why}" for name, why in regions.left_out.items()]
    return Quotes(at=clock.now(), quotes=quotes, notes=tuple(notes))


def _in_region(region: Region, config: AwsConfig, clock: Clock, accelerators: Sequence[str]) -> Quotes:
    now = clock.now()
    kinds = Catalog(region, config, clock).types.values()
    able = [kind for kind in kinds if config.instance_types or kind.accelerators]
    names = {each.casefold() for each in accelerators}
    wanted = [kind for kind in able if not names or kind.accelerators.casefold() in names]
    if not wanted:
        return Quotes(at=now, quotes=())
    types = tuple(kind.name for kind in wanted)
    catalog = Catalog(region, replace(config, instance_types=types), clock)
    spot = spot_prices(region, types, now - LOOKED_BACK)
    room, refused = _room(region, {kind.name: kind.cpus for kind in wanted})
    quotes = tuple(_quote(offering, spot, catalog.price_list, room) for offering in catalog.rented_out())
    return Quotes(at=now, quotes=quotes, notes=tuple(_notes(region.name, quotes, spot, catalog.price_list, refused)))


def _quote(offering: Offering, spot: SpotPrices, prices: PriceList, room: Headroom | None) -> Quote:
    listed = prices.prices.get(offering.instance_type)
    left = None if room is None else room.for_more(offering.instance_type, offering.cpus, offering.capacity_type)
    return Quote(
        offering=offering,
        history=_history(offering, spot.segments),
        on_demand_usd_per_hour=None if listed is None else listed.usd_per_hour,
        room=left,
    )


def _history(offering: Offering, spot: Mapping[SpotPool, list[PriceSegment]]) -> tuple[PriceSegment, ...]:
    """Return the price history of a spot offering; () for an on-demand offering, because AWS publishes none."""
    if offering.capacity_type is CapacityType.ON_DEMAND:
        return ()
    return tuple(spot.get(SpotPool(offering.instance_type, offering.zone), ()))


def _room(region: Region, cpus: Mapping[str, int]) -> tuple[Headroom | None, str | None]:
    try:
        return read_headroom(region, cpus), None
    except CloudError as error:
        return None, error.message


def _notes(
    region: str, quotes: tuple[Quote, ...], spot: SpotPrices, prices: PriceList, quotas_refused: str | None
) -> Iterator[str]:
    pools = {(quote.offering.instance_type, quote.offering.zone): quote for quote in quotes}
    dear = [
        f"{quote.offering.instance_type} in {quote.offering.zone}"
        for quote in quotes
        if quote.offering.capacity_type is CapacityType.SPOT and _as_dear(quote)
    ]
    unpriced = [f"{kind} in {zone}" for kind, zone in pools if SpotPool(kind, zone) not in spot.segments]
    if dear:
        yield f"spot is no cheaper than on demand: {some_of(dear)}"
    if unpriced:
        yield f"EC2 reports no spot price for: {some_of(unpriced)}"
    if spot.unreadable:
        yield f"unreadable spot prices of {region}: {some_of(spot.unreadable)}"
    if prices.trouble is not None:
        yield f"on-demand prices of {region} are from the shipped table: {prices.trouble}"
    if quotas_refused is not None:
        yield f"quotas of {region} are unknown: {quotas_refused}"


def _as_dear(quote: Quote) -> bool:
    on_demand: Decimal | None = quote.on_demand_usd_per_hour
    return on_demand is not None and quote.offering.price_usd_per_hour >= on_demand
