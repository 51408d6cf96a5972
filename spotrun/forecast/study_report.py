"""
Shows a study of strategies on recorded markets as tables, CSV and JSON. Each cost is given as a share of the cost on
demand.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from spotrun.report.folding import say
from spotrun.report.machine_readable import csv_table
from spotrun.report.tables import NOTHING, FiguresTable, add_row, figures_table, plain, print_figures
from spotrun.units import count_of, format_duration

if TYPE_CHECKING:
    from spotrun.forecast.study import Case, StrategyResult, Study

BAR_WIDTH = 20
COLUMNS = (
    *("strategy", "zones", "work_s", "deadline_s", "changeover_s"),
    *("cost_share", "misses", "losses", "trials"),
)


def case_title(case: Case) -> str:
    work, due, start = (
        format_duration(timedelta(seconds=seconds)) for seconds in (case.work_s, case.deadline_s, case.changeover_s)
    )
    return f"{work} of work due in {due}, starts take {start}, {case.zones}"


def case_table(case: Case, rows: Iterable[StrategyResult]) -> FiguresTable:
    """
    Return a table with a row for each strategy. The bar in a row shows the strategy's cost; a full bar stands for the
    on-demand bill.
    """
    table = figures_table(case_title(case), "strategy", ["cost", "", "late", "losses"])
    for row in rows:
        bar = "=" * min(BAR_WIDTH, round(row.cost_share * BAR_WIDTH))
        late = f"{row.misses}/{row.trials}"
        losses = NOTHING if row.losses is None else f"{row.losses:.1f}"
        add_row(table, [row.strategy, f"{row.cost_share:.3f}", f"{bar:{BAR_WIDTH}}", late, losses])
    return table


def as_csv(found: Study) -> str:
    return csv_table(COLUMNS, (_flat(row) for row in found.rows))


def _flat(row: StrategyResult) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(row)
    return {**facts.pop("case"), **facts}


def as_json(found: Study) -> dict[str, Any]:
    return {
        "records": msgspec.to_builtins(found.records),
        "results": [_flat(row) for row in found.rows],
        "sha256": found.digest,
    }


def show(found: Study) -> None:
    for record in found.records:
        extent = f"{count_of(record.windows, 'window')} of {record.zones} zones" if record.zones > 1 else "1 zone"
        short = "" if record.trials else "; shorter than every deadline, not studied"
        facts = f"{record.polarity}, up {record.up_share:.0%}, tick {record.tick_s:g} s"
        say(f"{plain(record.name)}: {extent}, {facts}{short}")
    say("\nCosts are shares of the on-demand-only bill.\n")
    for case, rows in groupby(found.rows, key=lambda row: row.case):
        print_figures(case_table(case, rows))
        print()
    say(f"sha256 of all trials: {found.digest}")
