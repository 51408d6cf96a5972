"""The offerings considered, with the chosen one ticked, on one screen: a launch shows them and waits for an answer."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from spotrun.offering import Offering

ROWS_MAX = 15


def offerings_table(offerings: Sequence[Offering], chosen: Offering) -> Table:
    """The first `ROWS_MAX` in their order, and the chosen one; the last line counts the rest."""
    first = offerings[:ROWS_MAX]
    shown = first if chosen in first else [*first[:-1], chosen]
    table = Table(title="Offerings considered", title_justify="left", box=None, pad_edge=False)
    for heading, justify in (("", "left"), ("zone", "left"), ("type", "left"), ("accelerators", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("capacity")
    table.add_column("$/h", justify="right")
    for offering in shown:
        table.add_row(*(Text(cell) for cell in _cells(offering, offering == chosen)))
    if len(shown) < len(offerings):
        table.caption = (
            f"and {len(offerings) - len(shown)} more; `spotrun offers --cloud {chosen.cloud}` shows them all"
        )
        table.caption_justify = "left"
    return table


def _cells(offering: Offering, ticked: bool) -> list[str]:
    price = f"{offering.price_usd_per_hour:.4f}" + (" simulated" if offering.simulated else "")
    zone = f"{offering.cloud}/{offering.zone}"
    mark = "✓" if ticked else " "
    return [mark, zone, offering.instance_type, offering.accelerators, str(offering.capacity_type), price]
