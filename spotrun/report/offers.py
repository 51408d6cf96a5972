"""
Shows the offerings that a launch considers, before it asks the user to confirm. A check mark shows the chosen offering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType

from rich.console import Console, Group, RenderableType
from rich.text import Text

from spotrun.offering import Offering
from spotrun.report.tables import FiguresTable, dollars, print_figures

ROWS_MAX = 15
NO_CHOICE: Mapping[Offering, Decimal] = MappingProxyType({})
_SAME = "$ for the same: cost of the work that the first kind does in an hour; speeds are as published until measured"


def show(
    offerings: Sequence[Offering],
    chosen: Offering,
    console: Console | None = None,
    work: Mapping[Offering, Decimal] = NO_CHOICE,
) -> None:
    """Print the table of offerings to a terminal, a file or a pipe."""
    print_figures(offerings_table(offerings, chosen, work), console)


def offerings_table(
    offerings: Sequence[Offering], chosen: Offering, work: Mapping[Offering, Decimal] = NO_CHOICE
) -> RenderableType:
    """
    Return a table of the first `ROWS_MAX` offerings in the given order. If `chosen` is not among them, it takes the
    last row. The line below the table gives the number of offerings that are not shown.

    If the job accepts several kinds of instances, their hourly prices cannot be compared, because some kinds train
    faster. Then `work` maps each offering to a cost that can be compared: the expected cost of the work that an
    instance of the first kind does in an hour.
    """
    ticked = next((each for each in offerings if _is_same(each, chosen)), chosen)
    first = offerings[:ROWS_MAX]
    shown = first if ticked in first else [*first[:-1], ticked]
    simulated = " (simulated prices)" if chosen.simulated else ""
    heads = ("", "zone", "type", "capacity", "accelerators", "$/h", *(("$ for\nthe same",) if work else ()))
    table = FiguresTable(f"Offerings considered{simulated}", heads, texts=(0, 1, 2, 3, 4), repeated=4, gap=2)
    for offering in shown:
        same = [dollars(work[offering]).removeprefix("$")] if work else []
        table.add_row([*_cells(offering, offering == ticked), *same])
    if len(shown) == len(offerings):
        return Group(table, Text(_SAME, style="dim")) if work else table
    more = f"and {len(offerings) - len(shown)} more; `spotrun offers --cloud {chosen.cloud}` shows them all"
    return Group(table, Text("\n".join([more, *([_SAME] if work else [])]), style="dim"))


def _is_same(offering: Offering, chosen: Offering) -> bool:
    """Compare all but the image and the subnets: a launch may use another one than the first of those offered."""
    return (offering.pool, offering.price_usd_per_hour) == (chosen.pool, chosen.price_usd_per_hour)


def _cells(offering: Offering, ticked: bool) -> list[str]:
    capacity = offering.capacity_type.in_words
    zone, price = f"{offering.cloud}/{offering.zone}", dollars(offering.price_usd_per_hour).removeprefix("$")
    return ["✓" if ticked else "", zone, offering.instance_type, capacity, offering.accelerators, price]
