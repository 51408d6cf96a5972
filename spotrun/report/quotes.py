"""Formats the output of `spotrun offers`: the offerings of a cloud with their prices, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from rich.console import Console

from spotrun.market.price_history import price_series
from spotrun.market.quotes import LOOKED_BACK, Quote, Quotes, cheapest_zones
from spotrun.offering import CapacityType
from spotrun.report.folding import say
from spotrun.report.machine_readable import json_object
from spotrun.report.sparkline import bars
from spotrun.report.tables import (
    NOTHING,
    FiguresTable,
    add_row,
    dollars,
    figures_table,
    percent,
    plain,
    print_figures,
)

Order = Literal["usd", "compute"]
MONTH = timedelta(days=30)
SERIES_POINTS = 12
_FIGURES = [
    "$/h\nnow",
    "mean\n30 d",
    "mean\n90 d",
    "min",
    "max",
    "90 days",
    "below\non dem.",
    "$/\nPFLOPS·h",
]


def ordered(quotes: Sequence[Quote], order: Order) -> list[Quote]:
    """
    Sort the quotes by price, lowest first. If `order` is "usd", quotes are sorted by their price per hour. If it is
    "compute", their price per hour is divided by their computing speed in PFLOPS. Quotes for which this price is
    unknown come last.
    """

    def by(quote: Quote) -> tuple[bool, Decimal, str, str]:
        hourly = quote.offering.price_usd_per_hour
        price = hourly if order == "usd" else quote.usd_per_pflops_hour
        key = hourly if price is None else price
        return price is None, key, quote.offering.zone, quote.offering.instance_type

    return sorted(quotes, key=by)


def show(found: Quotes, order: Order, console: Console | None = None) -> None:
    """Print the table, and below it the meaning of its marks and the notes."""
    print_figures(quotes_table(found, order), console)
    say("\n".join(["", "✓ the cheapest zone of its type; averages are weighted by time", *legend(found)]))


def legend(found: Quotes) -> list[str]:
    """Return the lines below the table: where the on-demand prices come from, and what could not be read."""
    lists = sorted({quote.offering.price_list for quote in found.quotes} - {""})
    simulated = any(quote.offering.simulated for quote in found.quotes)
    return [
        *(["prices are SIMULATED and never billed"] if simulated else []),
        *([f"prices on demand: {', '.join(lists)}"] if lists else []),
        *(f"note: {plain(note)}" for note in found.notes),
    ]


def quotes_table(found: Quotes, order: Order) -> FiguresTable:
    """
    Return a table with a row for each zone, instance type and capacity type. A column is left out if none of its values
    is known.
    """
    quotas = any(quote.room is not None for quote in found.quotes)
    bands = any(quote.interruption_band is not None for quote in found.quotes)
    extra = [*(["taken\nback"] if bands else []), *(["quota\nroom"] if quotas else [])]
    headings = ["type", "capacity", "accel.", *_FIGURES, *extra]
    table = figures_table("What can be rented", "zone", headings, texts=(0, 1, 2, 3), repeated=3)
    cheapest = cheapest_zones(found.quotes)
    for alike in _alike(ordered(found.quotes, order)):
        quote = alike[0]
        zone = f"{quote.offering.zone}{' ✓' if quote.offering in cheapest else ''}"
        place = zone if len(alike) == 1 else f"{quote.offering.region}, {len(alike)} zones"
        band = [quote.interruption_band or NOTHING] if bands else []
        room = [NOTHING if quote.room is None else str(quote.room)] if quotas else []
        add_row(table, [place, *_cells(quote, found.at), *band, *room])
    return table


def _alike(quotes: Sequence[Quote]) -> list[list[Quote]]:
    """
    Group the quotes that share a row of the table. On-demand quotes of one type share a row if they are in the same
    region and have the same price. Each spot quote has a separate row.
    """
    groups: dict[object, list[Quote]] = {}
    for quote in quotes:
        offering = quote.offering
        alone = offering.capacity_type is CapacityType.SPOT
        same = (offering.region, offering.instance_type, offering.price_usd_per_hour, offering.zone if alone else "")
        groups.setdefault(same, []).append(quote)
    return list(groups.values())


def _cells(quote: Quote, now: datetime) -> list[str]:
    offering, whole = quote.offering, quote.over(LOOKED_BACK, now)
    month = quote.over(MONTH, now)
    return [
        offering.instance_type,
        offering.capacity_type.in_words,
        offering.accelerators or NOTHING,
        dollars(offering.price_usd_per_hour),
        dollars(None if month is None else month.mean),
        *([NOTHING] * 3 if whole is None else [dollars(price) for price in whole]),
        bars(price_series(quote.history, now - LOOKED_BACK, now, SERIES_POINTS)) or NOTHING,
        NOTHING if offering.capacity_type is CapacityType.ON_DEMAND else percent(quote.saved),
        dollars(quote.usd_per_pflops_hour),
    ]


def as_json(found: Quotes, order: Order) -> dict[str, Any]:
    """Return the output of `--json`. Its keys do not change. Dollars are decimal strings, shares are numbers."""
    cheapest = cheapest_zones(found.quotes)
    quotes = ordered(found.quotes, order)
    offers = [_machine_row(quote, found.at, quote.offering in cheapest) for quote in quotes]
    return json_object(at=found.at, offers=offers, notes=[plain(note) for note in found.notes])


def _machine_row(quote: Quote, now: datetime, cheapest: bool) -> dict[str, Any]:
    offering = quote.offering
    return {
        "cloud": offering.cloud,
        "region": offering.region,
        "zone": offering.zone,
        "instance_type": offering.instance_type,
        "capacity_type": offering.capacity_type,
        "accelerators": offering.accelerators,
        "cpus": offering.cpus,
        "memory_gib": offering.memory_gib,
        "usd_per_hour": offering.price_usd_per_hour,
        "last_30_days": quote.over(MONTH, now),
        "last_90_days": quote.over(LOOKED_BACK, now),
        "course_90_days": price_series(quote.history, now - LOOKED_BACK, now, SERIES_POINTS),
        "on_demand_usd_per_hour": quote.on_demand_usd_per_hour,
        "below_on_demand": None if quote.saved is None else round(quote.saved, 4),
        "usd_per_pflops_hour": quote.usd_per_pflops_hour,
        "interruption_band": quote.interruption_band,
        "cheapest_zone": cheapest,
        "quota_room": quote.room,
        "price_list": offering.price_list,
        "simulated": offering.simulated,
    }
