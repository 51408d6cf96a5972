"""Shows all runs, and updates them while a person watches: as a live screen on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console, Group, RenderableType
from rich.text import Text

from spotrun.report.overview import Rows, cells, notes, prices, table
from spotrun.report.tables import plain
from spotrun.report.view import Screen, View


def watching() -> View[Rows]:
    """Return a screen if the output goes to a terminal, and plain lines if it goes to a file or a pipe."""
    return _Table() if sys.stdout.isatty() else _Changes()


class _Table(Screen[Rows]):
    def __init__(self) -> None:
        super().__init__(Console(), refresh_per_second=4, transient=False)

    def render(self, update: Rows) -> RenderableType:
        return Group(table(update), *(Text(line) for line in [*prices(update), *notes(update)]))


class _Changes(View[Rows]):
    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def show(self, update: Rows) -> None:
        for row in update:
            word, step, epochs, *_ = cells(row)
            line = " | ".join(part for part in (word, f"epochs {epochs}", row.get("next") or row.get("detail")) if part)
            if self._shown.get(row["run"]) != line:
                self._shown[row["run"]] = line
                print(f"{row['run']}: {plain(line)} | step {step}", flush=True)
