"""All runs in a table, once or updated while somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spotrun.report.sparkline import sparkline
from spotrun.report.tables import dollars, plain, scale_mark
from spotrun.report.view import Screen, View

Rows = Sequence[dict[str, Any]]
"""As `spotrun status --json` prints them."""


def table(rows: Rows) -> Table:
    """A row for each run."""
    made = Table(box=None, pad_edge=False)
    made.add_column("run", no_wrap=True)
    for heading in ("state", "step", "epochs", "lost", "cost", "started (UTC)"):
        made.add_column(heading)
    for row in rows:
        made.add_row(*(Text(cell) for cell in [row["run"] + scale_mark(row.get("time_scale", 1)), *_cells(row)]))
    return made


def _cells(row: dict[str, Any]) -> list[str]:
    word = row["state"] + (", unattended" if row.get("attended") is False else "")
    cost = dollars(Decimal(row["cost_usd"])) if "cost_usd" in row else "?"
    counts = [str(row.get(name, "?")) for name in ("step", "epochs_completed", "interruptions")]
    return [word, *counts, cost, row["started_at"][5:16].replace("T", " ")]


def notes(rows: Rows) -> list[str]:
    """Notes below the table: simulated costs, what went wrong, and what comes next."""
    simulated = any(row.get("simulated") for row in rows)
    said = ["Costs of runs on the local cloud are simulated. `lost`: interruptions."] if simulated else []
    said += [f"{row['run']}: {plain(row['detail'])}" for row in rows if row.get("detail")]
    return said + [f"{row['run']} {plain(row['next'])}" for row in rows if row.get("next")]


def prices(rows: Rows) -> list[str]:
    """The hourly price so far of each run that goes on, as a line of bars."""
    by_run = {row["run"]: row.get("prices_usd_per_hour", []) for row in rows if row.get("next")}
    drawn = {
        run: sparkline([None if each is None else Decimal(each) for each in found]) for run, found in by_run.items()
    }
    return [f"{run} {line}" for run, line in drawn.items() if line]


def watching() -> View[Rows]:
    """A screen on a terminal, plain lines if the output goes to a file or a pipe."""
    return _Table() if sys.stdout.isatty() else _Changes()


class _Table(Screen[Rows]):
    def __init__(self) -> None:
        super().__init__(Console(), refresh_per_second=4, transient=False)

    def render(self, update: Rows) -> RenderableType:
        return Group(table(update), *(Text(line) for line in [*prices(update), *notes(update)]))


class _Changes(View[Rows]):
    """A line for each run that changed."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def show(self, update: Rows) -> None:
        for row in update:
            word, step, epochs, *_ = _cells(row)
            line = " | ".join(part for part in (word, f"epochs {epochs}", row.get("next") or row.get("detail")) if part)
            if self._shown.get(row["run"]) != line:
                self._shown[row["run"]] = line
                print(f"{row['run']}: {plain(line)} | step {step}", flush=True)
