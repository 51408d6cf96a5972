"""
Builds the table of `spotrun status`. It imports few modules, because this command is used often and has to be fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from spotrun.report import gaps
from spotrun.report.sparkline import sparkline
from spotrun.report.tables import FiguresTable, dollars, plain, scale_mark
from spotrun.run.owners import about_forged
from spotrun.run.protection import KEEP, UNPROTECTED

KEPT_MIN_H = Decimal("0.1")
"""
Minimum hours of work for which the cost of an hour is shown. The cost of a shorter job is mostly that of its start.
"""
Rows = Sequence[dict[str, Any]]
"""The rows that `spotrun status --json` prints."""
HEADS = ("run", "state", "step", "epochs", "lost", "cost", "started (UTC)")


def table(rows: Rows) -> FiguresTable:
    heads = [name.replace(" ", "\n") for name in HEADS]
    made = FiguresTable("", heads, texts=(0, 1), gap=2)
    for row in rows:
        made.add_row([row["run"] + scale_mark(row.get("time_scale", 1)), *cells(row)])
    return made


def cells(row: dict[str, Any]) -> list[str]:
    word = row["state"] + (", unattended" if row.get("attended") is False else "")
    cost = dollars(Decimal(row["cost_usd"])) if "cost_usd" in row else "?"
    counts = [str(row.get(name, "?")) for name in ("step", "epochs_completed", "interruptions")]
    return [word, *counts, cost, row["started_at"][5:16].replace("T", " ")]


def notes(rows: Rows) -> list[str]:
    """
    Return the notes to print below the table. They say whether costs are simulated, what is wrong, and what each run
    does next.
    """
    simulated = any(row.get("simulated") for row in rows)
    said = ["Costs of runs on the local cloud are simulated. `lost`: interruptions."] if simulated else []
    said += [f"{row['run']}: {plain(row['detail'])}" for row in rows if row.get("detail")]
    said += _members(rows[0].get("members", ())) if len(rows) == 1 else []
    said += [f"{row['run']}: {line}" for row in rows for line in gaps.briefly(row.get("not_carried", ()))]
    said += [f"{row['run']}: {line}" for row in rows for line in _of_command(row)]
    said += [f"{row['run']}: {line}" for row in rows if (line := about_forged(row.get("forged", 0), row["run"]))]
    return said + [f"{row['run']} {plain(row['next'])}" for row in rows if row.get("next")]


def _members(found: Rows) -> list[str]:
    """Return a line for each member of a gang. These lines are printed only if the table has a single run."""
    ranks = ["" if each["rank"] is None else f" (rank {each['rank']})" for each in found]
    return [
        plain(f"member {each['name']}{rank} on {each['where']} {each['does']}")
        for each, rank in zip(found, ranks, strict=True)
    ]


def _of_command(row: dict[str, Any]) -> Iterator[str]:
    """
    Yield notes about a run whose job is a command. Such a run has no epochs whose cost could be shown, so one note
    shows the cost per hour of work whose result was kept. Another note warns if the run stores no files.
    """
    if (hour := Decimal(row.get("usd_per_kept_hour") or 0)) and Decimal(row["cost_usd"]) >= hour * KEPT_MIN_H:
        yield f"{dollars(hour)} for each hour of work whose result was kept"
    if row.get("unprotected"):
        yield f"unprotected: {UNPROTECTED}; {KEEP}"
    elif row.get("keeps_nothing") and row.get("next"):
        yield "stores nothing so far, so an interruption restarts it; add train: {state: [out/]} to store out/"


def prices(rows: Rows) -> list[str]:
    """Return a line for each run that has not ended, with small bars that show the run's hourly price over time."""
    by_run = {row["run"]: row.get("prices_usd_per_hour", []) for row in rows if row.get("next")}
    drawn = {
        run: sparkline([None if each is None else Decimal(each) for each in found]) for run, found in by_run.items()
    }
    return [f"{run} {line}" for run, line in drawn.items() if line]
