"""Shows the result of `spotrun estimate` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

from spotrun.estimate.assumptions import assumptions, plain_number
from spotrun.estimate.cost_study import CostStudy, Place
from spotrun.estimate.costs import DAYS_MAX, SPOT, BreakEven, Cost, break_evens, capacity_of, costs
from spotrun.estimate.prices import usd_per_hour, usd_per_month
from spotrun.estimate.published import FigureComparison, compared
from spotrun.report.folding import say
from spotrun.report.machine_readable import json_object
from spotrun.report.tables import NOTHING, FiguresTable, dollars, figures_table, plain, print_figures
from spotrun.units import count_of

BAR_WIDTH = 20
BREAK_EVENS_MAX = 20
"""
Maximum number of rows in the table of break-evens for each machine of the user. Each row compares the machine with a
place to rent. The cheapest places come first.
"""
DIGITS = 4
"""Number of significant digits in figures that are not dollars."""


def show(study: CostStudy, title: str) -> None:
    """Print a study. `title` is the name of its file."""
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
    monthly = dollars(usd_per_month(study, place))
    if place.spot is None:
        return [dollars(hourly), monthly, NOTHING, NOTHING]
    spot = place.spot.usd_per_hour
    if capacity_of(place) == SPOT:
        return [NOTHING, monthly, dollars(spot), NOTHING]
    return [dollars(hourly), monthly, dollars(spot), f"{spot / hourly:.0%}" if hourly else NOTHING]


def cost_table(rows: Sequence[Cost]) -> FiguresTable:
    """Return a table of one training's costs, with a line for each place. The most expensive place has a full bar."""
    spread = ["spread"] if any(_has_spread(row) for row in rows) else []
    heads = ["paid", "samples/s", "hours", "dollars", "", *spread, "samples/$", "time\nof base", "cost\nof base"]
    table = figures_table(rows[0].training, "place", heads, texts=(0, 1))
    most = max(row.usd for row in rows) or Decimal(1)
    for row in rows:
        bar = "=" * max(1, round(row.usd / most * BAR_WIDTH))
        spent = [digits(row.hours), dollars(row.usd), f"{bar:{BAR_WIDTH}}", *([_spread(row)] if spread else [])]
        of_base = [digits(row.normalised_time, 3), digits(row.normalised_cost, 3)]
        cells = [digits(row.samples_per_second), *spent, digits(row.samples_per_usd), *of_base]
        table.add_row([row.place, _paid(row), *cells])
    return table


def _paid(row: Cost) -> str:
    return row.capacity if row.months is None else f"{row.capacity}, {count_of(int(row.months), 'month')}"


def _has_spread(row: Cost) -> bool:
    return row.usd_low != row.usd_high


def _spread(row: Cost) -> str:
    """Format the range from the cost at the lowest spot price to the cost at the highest."""
    if not _has_spread(row):
        return NOTHING
    low, high = dollars(row.usd_low), dollars(row.usd_high)
    return f"{low} to {high}" if NOTHING not in (low, high) else f"up to {high}" if low == NOTHING else f"from {low}"


def break_even_table(rows: Sequence[BreakEven]) -> FiguresTable:
    """Return a table of the break-evens of all trainings, with a line for each alternative to the user's machine."""
    heads = ["than", "paid", "from days\na month"]
    table = figures_table("Cheaper on your own machine", "machine", heads, texts=(0, 1, 2))
    for own, of_machine in groupby(rows, key=lambda row: row.own):
        found: dict[tuple[str, str], list[Decimal]] = {}
        for row in of_machine:
            days = Decimal("Infinity") if row.days_per_month is None else row.days_per_month
            found.setdefault((row.rival, row.capacity), []).append(days)
        latest_first = sorted(found.items(), key=lambda item: min(item[1]), reverse=True)
        for (rival, capacity), several in latest_first[:BREAK_EVENS_MAX]:
            table.add_row([own, rival, capacity, _days(several)])
        if more := len(latest_first) - BREAK_EVENS_MAX if len(latest_first) > BREAK_EVENS_MAX else 0:
            table.add_row([own, f"and {more:,} dearer ones: see --json", "", ""])
    return table


def _days(several: Sequence[Decimal]) -> str:
    """Format the range of break-even days over all trainings: `5.4`, `4.0 to 4.6`, `never`."""
    least, most = ("never" if days > DAYS_MAX else f"{days:.1f}" for days in (min(several), max(several)))
    return least if least == most else f"{least} to {most}"


def published_table(rows: Sequence[FigureComparison]) -> FiguresTable:
    table = figures_table(
        "Compared with published figures", "figure", ["published", "here", "off by", "why"], texts=(0, 4)
    )
    for row in rows:
        off = NOTHING if row.off is None else f"{round(row.off, 3) + 0:+.1%}"
        table.add_row([row.figure, plain_number(row.published), digits(row.ours, 6), off, _verdict(row)])
    return table


def _verdict(row: FigureComparison) -> str:
    if row.differs is not None or row.agrees:
        return row.differs or ""
    return "DIFFERS" if row.ours is not None else "NOT COMPUTED: a speed, a price or your own machine is missing"


def digits(number: Decimal | None, significant: int = DIGITS) -> str:
    """Format a number with `significant` digits, without an exponent: `45.05`, `153,600,000`."""
    if number is None:
        return NOTHING
    places = max(0, significant - 1 - number.adjusted())
    return f"{round(number, places):,f}"


def as_json(study: CostStudy, title: str) -> dict[str, Any]:
    """Return the output of `--json`. Its keys are the same in all versions; numbers are decimal strings."""
    return json_object(
        file=title,
        title=study.title,
        source=study.source,
        as_of=study.as_of,
        places={
            name: {
                "paid": capacity_of(place),
                "usd_per_hour": usd_per_hour(place),
                "usd_per_month": usd_per_month(study, place),
                "spot_usd_per_hour": None if place.spot is None else place.spot.usd_per_hour,
            }
            for name, place in study.places.items()
        },
        costs=[*costs(study)],
        break_even=[*break_evens(study)],
        published=compared(study),
        assumptions=assumptions(study),
    )
