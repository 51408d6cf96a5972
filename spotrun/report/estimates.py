"""`spotrun estimate` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

import msgspec

from spotrun.estimate.assumptions import assumptions, plain_number
from spotrun.estimate.costs import DAYS_MAX, BreakEven, Cost, break_evens, capacity_of, costs
from spotrun.estimate.prices import usd_per_hour, usd_per_month
from spotrun.estimate.published import Compared, compared
from spotrun.report.folding import say
from spotrun.report.tables import NOTHING, FiguresTable, dollars, figures_table, plain, print_figures
from spotrun.spec.cost_study import CostStudy, Place

BAR_WIDTH = 20
DIGITS = 4
"""Significant ones, of figures that are not dollars."""


def show(study: CostStudy, title: str) -> None:
    """`title` names the file."""
    say(f"{plain(study.title)} ({plain(title)})")
    if study.source is not None:
        say(f"after {plain(study.source)}")
    for table in tables(study):
        print()
        print_figures(table)
    say("\nAssumed:")
    for line in assumptions(study):
        say(f"- {plain(line)}", indent=2)


def tables(study: CostStudy) -> Iterator[FiguresTable]:
    yield price_table(study)
    for _, of_training in groupby(costs(study), key=lambda cost: cost.training):
        yield cost_table(list(of_training))
    days = list(break_evens(study))
    if days:
        yield break_even_table(days)
    beside = compared(study)
    if beside:
        yield published_table(beside)


def price_table(study: CostStudy) -> FiguresTable:
    heads = ["paid", "$/h", "$ a\nmonth", "spot\n$/h", "spot of\non-dem."]
    table = figures_table("What the places cost", "place", heads, texts=(0, 1))
    for name, place in study.places.items():
        table.add_row([name, capacity_of(place), *_prices(study, place)])
    return table


def _prices(study: CostStudy, place: Place) -> list[str]:
    hourly = usd_per_hour(place)
    spot = None if place.spot is None else place.spot.usd_per_hour
    share = NOTHING if spot is None else f"{spot / hourly:.0%}"
    return [dollars(hourly), dollars(usd_per_month(study, place)), dollars(spot), share]


def cost_table(rows: Sequence[Cost]) -> FiguresTable:
    """Of one training, a line for each place. The bar is full at the dearest one."""
    spread = ["spread"] if any(row.usd_low is not None or row.usd_high is not None for row in rows) else []
    heads = ["paid", "samples/s", "hours", "dollars", "", *spread, "samples/$", "time\nof base", "cost\nof base"]
    table = figures_table(rows[0].training, "place", heads, texts=(0, 1, 5))
    most = max(row.usd for row in rows)
    for row in rows:
        bar = "=" * max(1, round(row.usd / most * BAR_WIDTH))
        spent = [digits(row.hours), dollars(row.usd), f"{bar:{BAR_WIDTH}}", *([_spread(row)] if spread else [])]
        of_base = [digits(row.normalised_time, 3), digits(row.normalised_cost, 3)]
        cells = [digits(row.samples_per_second), *spent, digits(row.samples_per_usd), *of_base]
        table.add_row([row.place, row.capacity, *cells])
    return table


def _spread(row: Cost) -> str:
    """Of the dollars, by the lowest and the highest price."""
    if row.usd_low is None and row.usd_high is None:
        return NOTHING
    return f"{dollars(row.usd_low)} to {dollars(row.usd_high)}"


def break_even_table(rows: Sequence[BreakEven]) -> FiguresTable:
    table = figures_table(
        "Cheaper on a machine of one's own", "machine", ["than", "paid", "training", "from days\na month"]
    )
    for row in rows:
        table.add_row([row.own, row.rival, row.capacity, row.training, _days(row.days_per_month)])
    return table


def _days(days: Decimal | None) -> str:
    return "never" if days is None or days > DAYS_MAX else f"{days:.1f}"


def published_table(rows: Sequence[Compared]) -> FiguresTable:
    table = figures_table("Beside what was published", "figure", ["published", "here", "off by", ""], texts=(0, 4))
    for row in rows:
        off = NOTHING if row.off is None else f"{round(row.off, 3) + 0:+.1%}"
        table.add_row([row.figure, plain_number(row.published), digits(row.ours, 6), off, _verdict(row)])
    return table


def _verdict(row: Compared) -> str:
    if row.differs is not None:
        return row.differs
    return "" if row.agrees else "not reckoned: the study says too little" if row.ours is None else "DIFFERS"


def digits(number: Decimal | None, significant: int = DIGITS) -> str:
    """So many significant digits, without an exponent: `45.05`, `153,600,000`."""
    if number is None:
        return NOTHING
    places = max(0, significant - 1 - number.adjusted())
    return f"{round(number, places):,f}"


def as_json(study: CostStudy, title: str) -> dict[str, Any]:
    """What `--json` prints. The keys do not change; figures are decimal strings."""
    return {
        "file": title,
        "title": study.title,
        "source": study.source,
        "as_of": study.as_of,
        "places": {
            name: {
                "paid": capacity_of(place),
                "usd_per_hour": plain_number(usd_per_hour(place)),
                "usd_per_month": plain_number(usd_per_month(study, place)),
                "spot_usd_per_hour": None if place.spot is None else plain_number(place.spot.usd_per_hour),
            }
            for name, place in study.places.items()
        },
        "costs": [_for_programs(cost) for cost in costs(study)],
        "break_even": [_for_programs(each) for each in break_evens(study)],
        "published": [_for_programs(each) for each in compared(study)],
        "assumptions": assumptions(study),
    }


def _for_programs(row: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row)
    return {name: f"{value:.9f}" if isinstance(value, Decimal) else value for name, value in fields.items()}
