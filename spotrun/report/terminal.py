"""`spotrun report RUN` for people: what each epoch cost, where the time went, and what was saved."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spotrun.accounting import Account, RunSummary
from spotrun.report.tables import add_row, count, dollars, figures_table, percent, plain, short_duration
from spotrun.timeline import DOWNTIME


def show(summary: RunSummary, console: Console | None = None) -> None:
    """Print the report; it needs 80 columns, and no terminal."""
    (console or Console()).print(report(summary), markup=False, highlight=False, emoji=False)


def report(summary: RunSummary) -> RenderableType:
    return Group(
        Text(headline(summary), style="bold"),
        Text(),
        cost_table(summary),
        Text(),
        time_table(summary),
        Text(),
        Text(verdict(summary)),
        Text(f"Assumptions: {plain(summary.assumptions)}", style="dim"),
    )


def headline(summary: RunSummary) -> str:
    prices = ", simulated prices" if summary.simulated else ""
    return f"{plain(summary.run)}: {summary.state}{prices}"


def cost_table(summary: RunSummary) -> Table:
    """Dollars per epoch; the small change of requests and egress stands with storage."""
    headers = ["cost", "spot", "on-\ndemand", "storage", "all on\ndemand", "saved", "inter-\nrupted", "steps\nredone"]
    title = "What each epoch cost" + (" (simulated prices)" if summary.simulated else "")
    table = figures_table(title, "epoch", headers)
    return _filled(table, summary, _cost_cells)


def _cost_cells(account: Account) -> list[str]:
    return [
        dollars(account.cost_usd),
        dollars(account.spot_usd),
        dollars(account.on_demand_usd),
        dollars(account.storage_usd + account.requests_usd + account.egress_usd),
        dollars(account.counterfactual_usd),
        percent(account.savings),
        count(account.interruptions),
        count(account.steps_redone),
    ]


def time_table(summary: RunSummary) -> Table:
    """Wall time per epoch, and its downtime by cause."""
    headers = ["wall", "training", *(str(kind) for kind in DOWNTIME)]
    return _filled(figures_table("Where the time went", "epoch", headers), summary, _time_cells)


def _time_cells(account: Account) -> list[str]:
    times = [account.wall, account.productive, *(account.times[kind] for kind in DOWNTIME)]
    return [short_duration(time) for time in times]


def _filled(table: Table, summary: RunSummary, cells: Callable[[Account], list[str]]) -> Table:
    for epoch in summary.epochs:
        add_row(table, [_label(epoch), *cells(epoch)])
    if not _empty(summary.unfinished):
        add_row(table, ["unfinished", *cells(summary.unfinished)])
    table.add_section()
    add_row(table, ["total", *cells(summary.total)], style="bold")
    return table


def _label(epoch: Account) -> str:
    assert epoch.epoch is not None
    return str(epoch.epoch + 1)


def _empty(account: Account) -> bool:
    return not account.cost_usd and not account.wall


def verdict(summary: RunSummary) -> str:
    """The one sentence that people came for."""
    total = summary.total
    if total.savings is None:
        return f"{dollars(total.cost_usd)} so far, and nothing was trained that on-demand could be compared with."
    paid = f"{dollars(total.cost_usd)} instead of {dollars(total.counterfactual_usd)} all on demand"
    share = percent(abs(total.savings))
    return f"{paid}: {share} saved." if total.savings >= 0 else f"{paid}: {share} more."
