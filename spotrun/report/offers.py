"""The offerings that were considered, with the chosen one ticked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from spotrun.offering import Offering


def offerings_table(offerings: Sequence[Offering], chosen: Offering) -> Table:
    table = Table(title="Offerings considered", title_justify="left", box=None, pad_edge=False)
    for heading, justify in (("", "left"), ("zone", "left"), ("type", "left"), ("accelerators", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("capacity")
    table.add_column("$/h", justify="right")
    for offering in offerings:
        table.add_row(*(Text(cell) for cell in _cells(offering, offering == chosen)))
    return table


def _cells(offering: Offering, ticked: bool) -> list[str]:
    price = f"{offering.price_usd_per_hour:.4f}" + (" simulated" if offering.simulated else "")
    zone = f"{offering.cloud}/{offering.zone}"
    mark = "✓" if ticked else " "
    return [mark, zone, offering.instance_type, offering.accelerators, str(offering.capacity_type), price]
