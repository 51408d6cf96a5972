"""
Reads Compute Engine's current prices in the given regions, the spot prices of the past year, and how often Google has
recently interrupted each type. This works even if spotrun was never set up in the project.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.clouds.gcp.account_checks import project_facts, regions_told
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.catalog import Catalog, catalogs
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.preemption_shares import bands_in
from spotrun.clouds.gcp.quotas import Limits
from spotrun.clouds.regions import Regions
from spotrun.errors import CloudError
from spotrun.market.quotes import Quote, Quotes
from spotrun.offering import CapacityType, Offering
from spotrun.units import some_of

NOT_AMAZONS = (
    "how often Google interrupts: of the spot instances that end on a day, the share that Google ends, "
    "on average over a month; "
    "use it only to compare types, because it is not a rate"
)
NAME_TYPES = "past spot prices are read only for named types: add --accelerators or --instance-type"


class _QuoteContext(NamedTuple):
    """Data that the quotes of all regions share."""

    google: Google
    project: str
    config: GcpConfig
    limits: Limits | None


def read_quotes(config: GcpConfig, clock: Clock, accelerators: Sequence[str]) -> Quotes:
    """
    Return the quotes of `config.instance_types`; if it is empty, of all types with accelerators. If `accelerators` is
    not empty (for example `L4:1`), return only types with one of these accelerators.

    If only some regions fail, or if Google refuses a price list, a history or the quotas, the quotes contain a note
    about it.

    Raises:
        CloudError: no region answers, or there is no project.
    """
    google = Google(clock)
    project = google.project(config.project)
    config = replace(config, accelerators=tuple(accelerators)) if accelerators else config
    limits, refused = _limits(google, project)
    asked, regions = _QuoteContext(google, project, config, limits), Regions(config.regions, clock)
    catalogs_by_region = catalogs(google, project, config, clock)
    found = regions.ask(lambda name: _in_region(asked, name, catalogs_by_region[name], clock), must_see=()).values()
    notes = [note for part in found for note in part.notes]
    notes += [f"{name} is left out: {why}" for name, why in regions.left_out.items()]
    notes += [] if refused is None else [f"quotas are unknown: {refused}"]
    quotes = tuple(quote for part in found for quote in part.quotes)
    notes += [NOT_AMAZONS] if any(quote.interruption_band for quote in quotes) else []
    notes += [] if config.instance_types or config.accelerators else [NAME_TYPES]
    return Quotes(at=clock.now(), quotes=quotes, notes=tuple(notes))


def _in_region(asked: _QuoteContext, region: str, catalog: Catalog, clock: Clock) -> Quotes:
    offerings = [each for each in catalog.rented_out() if _is_wanted(each, asked.config)]
    bands = bands_in(asked.google, asked.project, region, catalog.asked_for)
    quotes = tuple(_quote(offering, catalog, bands, asked.limits) for offering in offerings)
    return Quotes(at=clock.now(), quotes=quotes, notes=tuple(_notes(region, quotes, catalog)))


def _is_wanted(offering: Offering, config: GcpConfig) -> bool:
    if config.accelerators:
        return config.wants(offering.accelerators, offering.instance_type)
    return bool(config.instance_types or offering.accelerators)


def _quote(offering: Offering, catalog: Catalog, bands: Mapping[str, str], limits: Limits | None) -> Quote:
    kind, is_spot = offering.instance_type, offering.capacity_type is CapacityType.SPOT
    listed = catalog.price_list.prices.get(kind)
    return Quote(
        offering=offering,
        history=tuple(catalog.spot.segments.get(kind, ())) if is_spot else (),
        on_demand_usd_per_hour=None if listed is None else listed.usd_per_hour,
        room=None if limits is None else _room(offering, limits),
        interruption_band=bands.get(f"{offering.region}/{kind}") if is_spot else None,
    )


def _room(offering: Offering, limits: Limits) -> int | None:
    """
    Return how many more instances of this offering the quotas allow; None if none of the offering's quotas is known.
    """
    known = ((limits.of(quota), takes) for quota, takes in limits.used_by(offering).items())
    return min((int(limit.left // takes) for limit, takes in known if limit is not None and takes), default=None)


def _limits(google: Google, project: str) -> tuple[Limits | None, str | None]:
    try:
        return Limits(project_facts(google, project), regions_told(google, project)), None
    except CloudError as error:
        return None, error.message


def _notes(region: str, quotes: tuple[Quote, ...], catalog: Catalog) -> Iterator[str]:
    prices, shown = catalog.price_list, {quote.offering.instance_type for quote in quotes}
    dear = {
        quote.offering.instance_type
        for quote in quotes
        if quote.offering.capacity_type is CapacityType.SPOT and quote.saved is not None and quote.saved <= 0
    }
    if dear:
        yield f"spot is no cheaper than on demand in {region}: {some_of(sorted(dear))}"
    untold: dict[str, list[str]] = defaultdict(list)
    for kind, why in catalog.spot.troubles.items():
        untold[why].append(kind)
    for why, kinds in untold.items():
        yield f"spot prices of {region} are from the price list, without past prices: {some_of(kinds)}: {why}"
    if prices.trouble is not None:
        yield f"prices of {region} are from the shipped table: {prices.trouble}"
    remarks = [remark for remark in prices.remarks if remark.partition(" ")[0] in shown]
    if remarks:
        yield some_of(remarks, "; ")
