"""The tables of the page: epochs, attempts, events. Epochs and attempts are named as the terminal names them."""

from __future__ import annotations

from collections.abc import Sequence

from spotrun.accounting import Account, RunSummary
from spotrun.events import Entry
from spotrun.report.describe import describe
from spotrun.report.html.markup import Markup, element
from spotrun.report.html.tables import figure, head, row, table
from spotrun.report.machine import usd_text
from spotrun.report.tables import count, dollars, percent, short_duration
from spotrun.state import RunState
from spotrun.timeline import DOWNTIME

ROWS_MAX = 500
"""Of each table, the newest: the file must stay small enough to be mailed."""
COSTS = ("cost", "spot", "on-demand", "storage", "requests", "all on demand")
OTHERS = ("saved", "wall", "training", *(str(kind) for kind in DOWNTIME), "interruptions", "steps redone")


def epochs(summary: RunSummary) -> Markup:
    """A row per epoch; `data-value` of a cell is the exact figure."""
    rows = [_account(str(e.epoch + 1), e) for e in summary.epochs[-ROWS_MAX:] if e.epoch is not None]
    feet = [_account("unfinished", summary.unfinished), _account("total", summary.total)]
    heads = [head(element("button", name, type="button")) for name in ("epoch", *COSTS, *OTHERS)]
    return table(f"Epochs{_cut(summary.epochs)}", heads, rows, feet)


def attempts(state: RunState) -> Markup:
    rows = []
    for attempt in list(state.attempts.values())[-ROWS_MAX:]:
        offering = state.launch_of(attempt).intent.offering
        end = "" if attempt.end is None else f"{attempt.end.cause}: {attempt.end.detail}".removesuffix(": ")
        notice = "" if attempt.notice_at is None else f"{attempt.notice_at:%Y-%m-%d %H:%M:%S}"
        capacity = str(offering.capacity_type).replace("_", "-")
        started = f"{attempt.started_at:%Y-%m-%d %H:%M:%S}"
        rows.append(row(str(attempt.number), [started, offering.zone, offering.instance_type, capacity, notice, end]))
    heads = [head(name) for name in ("attempt", "started (UTC)", "zone", "type", "capacity", "notice", "end")]
    return table(f"Attempts{_cut(tuple(state.attempts))}", heads, rows, class_="words")


def events(entries: Sequence[Entry]) -> Markup:
    rows = [row(str(e.number), [f"{e.at:%Y-%m-%d %H:%M:%S}", describe(e)]) for e in entries[-ROWS_MAX:]]
    heads = [head(name) for name in ("entry", "when (UTC)", "what happened")]
    return table(f"Events{_cut(entries)}", heads, rows, class_="words")


def _cut(rows: Sequence[object]) -> str:
    return f" (the last {ROWS_MAX} of {len(rows)})" if len(rows) > ROWS_MAX else ""


def _account(name: str, a: Account) -> Markup:
    return element("tr", element("th", name, scope="row", data_value=name), *account_cells(a))


def account_cells(a: Account) -> list[Markup]:
    """The figures of `COSTS` and `OTHERS`."""
    money = (a.cost_usd, a.spot_usd, a.on_demand_usd, a.storage_usd, a.requests_usd, a.counterfactual_usd)
    times = (a.wall, a.productive, *(a.times[kind] for kind in DOWNTIME))
    cells = [figure(dollars(amount), usd_text(amount)) for amount in money]
    cells.append(figure(percent(a.savings), -1 if a.savings is None else a.savings))
    cells += [figure(short_duration(time), time.total_seconds()) for time in times]
    cells += [figure(count(number), number) for number in (a.interruptions, a.steps_redone)]
    return cells
