"""The tables of the page: epochs, attempts, events. Epochs and attempts are named as the terminal names them."""

from __future__ import annotations

from collections.abc import Sequence

from spotrun.accounting import Account, RunSummary
from spotrun.events import Entry
from spotrun.report.describe import describe
from spotrun.report.html.markup import Content, Markup, element, join
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
    heads = [_head(element("button", name, type="button")) for name in ("epoch", *COSTS, *OTHERS)]
    return _table(f"Epochs{_cut(summary.epochs)}", heads, rows, feet)


def attempts(state: RunState) -> Markup:
    rows = []
    for attempt in list(state.attempts.values())[-ROWS_MAX:]:
        offering = state.launch_of(attempt).intent.offering
        end = "" if attempt.end is None else f"{attempt.end.cause}: {attempt.end.detail}".removesuffix(": ")
        notice = "" if attempt.notice_at is None else f"{attempt.notice_at:%Y-%m-%d %H:%M:%S}"
        capacity = str(offering.capacity_type).replace("_", "-")
        started = f"{attempt.started_at:%Y-%m-%d %H:%M:%S}"
        rows.append(_row(str(attempt.number), [started, offering.zone, offering.instance_type, capacity, notice, end]))
    heads = [_head(name) for name in ("attempt", "started (UTC)", "zone", "type", "capacity", "notice", "end")]
    return _table(f"Attempts{_cut(tuple(state.attempts))}", heads, rows, class_="words")


def events(entries: Sequence[Entry]) -> Markup:
    rows = [_row(str(e.number), [f"{e.at:%Y-%m-%d %H:%M:%S}", describe(e)]) for e in entries[-ROWS_MAX:]]
    heads = [_head(name) for name in ("entry", "when (UTC)", "what happened")]
    return _table(f"Events{_cut(entries)}", heads, rows, class_="words")


def _cut(rows: Sequence[object]) -> str:
    return f" (the last {ROWS_MAX} of {len(rows)})" if len(rows) > ROWS_MAX else ""


def _account(name: str, a: Account) -> Markup:
    money = (a.cost_usd, a.spot_usd, a.on_demand_usd, a.storage_usd, a.requests_usd, a.counterfactual_usd)
    times = (a.wall, a.productive, *(a.times[kind] for kind in DOWNTIME))
    cells = [_figure(dollars(amount), usd_text(amount)) for amount in money]
    cells.append(_figure(percent(a.savings), -1 if a.savings is None else a.savings))
    cells += [_figure(short_duration(time), time.total_seconds()) for time in times]
    cells += [_figure(count(number), number) for number in (a.interruptions, a.steps_redone)]
    return element("tr", element("th", name, scope="row", data_value=name), *cells)


def _figure(text: str, value: object) -> Markup:
    return element("td", text, data_value=value)


def _head(content: Content) -> Markup:
    return element("th", content, scope="col")


def _row(name: str, cells: list[str]) -> Markup:
    return element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells))


def _table(
    caption: str, heads: list[Markup], rows: list[Markup], feet: Sequence[Markup] = (), class_: str = "figures"
) -> Markup:
    head = element("thead", element("tr", *heads))
    foot = element("tfoot", *feet) if feet else join()
    table = element("table", element("caption", caption), head, element("tbody", *rows), foot, class_=class_)
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label=caption)
