"""Formats the text that `spotrun report RUN` prints: what each epoch cost, where the time went, and what was saved."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.text import Text

from spotrun.account.gang_sizes import OfSize
from spotrun.account.losses import Loss
from spotrun.account.summary import Account, RunSummary
from spotrun.account.timeline import DOWNTIME
from spotrun.folder.machine_use import TypeUse
from spotrun.folder.run_calls import RunnerCalls
from spotrun.report import runner_calls
from spotrun.report.amounts import Money, money
from spotrun.report.describe import dated, gigabytes, timestamp
from spotrun.report.gaps import for_programs, in_words
from spotrun.report.machine_use import machine_table
from spotrun.report.tables import (
    NOTHING,
    FiguresTable,
    add_row,
    count,
    dollars,
    figures_table,
    optional_duration,
    percent,
    plain,
    print_figures,
    short_duration,
)
from spotrun.report.why import capacity_text
from spotrun.run.billing import SECONDS_PER_HOUR, exact_seconds, to_nano
from spotrun.run.events import Cause, SetUp
from spotrun.units import count_of

ASSUMPTIONS = "What these figures assume: docs/bill.md; for this run: --html or --json."
LOSSES_SHOWN = 20
"""Maximum number of losses in the table on the terminal. The other formats list all of them."""


def show(
    summary: RunSummary,
    console: Console | None = None,
    machines: Sequence[TypeUse] = (),
    calls: RunnerCalls | None = None,
) -> None:
    """Print the report to a terminal, a file or a pipe."""
    print_figures(report(summary, machines, calls), console)


def report(summary: RunSummary, machines: Sequence[TypeUse] = (), calls: RunnerCalls | None = None) -> RenderableType:
    lost: list[RenderableType] = [loss_table(summary), Text()] if summary.losses else []
    busy: list[RenderableType] = [machine_table(machines), Text()] if machines else []
    return Group(
        Text(headline(summary), style="bold"),
        Text(),
        cost_table(summary),
        Text(),
        time_table(summary),
        Text(),
        *lost,
        *busy,
        *([Text(setups(summary))] if summary.setups else []),
        Text(verdict(summary)),
        *([Text(at_home(summary))] if summary.total.own_paid else []),
        *([Text(goodput(summary))] if summary.total.goodput is not None else []),
        *([Text(f"{by_members(summary.by_members)}.")] if summary.by_members else []),
        *([] if calls is None else [Text(runner_calls.in_words(calls))]),
        *(Text(f"Not exact: {in_words(gap)}.") for gap in for_programs(summary.gaps)),
        *(Text(f"Note: {plain(each)}.") for each in summary.caveats),
        Text(ASSUMPTIONS, style="dim"),
    )


def headline(summary: RunSummary) -> str:
    prices = ", simulated prices" if summary.simulated else ""
    return f"{plain(summary.run)}: {summary.state}{prices}"


def cost_table(summary: RunSummary) -> FiguresTable:
    """
    Return a table of the dollars of each epoch. One column has the total costs of checkpoints: storage, requests and
    traffic between regions. For a gang, the last column has the cost of members while they waited for others.
    """
    kept = "storage,\nrequests,\negress"
    own = ["own\nmachine"] if summary.total.at_home else []
    headers = ["cost", "spot", "on-\ndemand", *own, kept]
    headers += ["all on\ndemand", "saved", "inter-\nrupted", "steps\nredone"]
    headers += ["waiting\nmembers"] if summary.total.size > 1 else []
    title = "What each epoch cost" + (" (simulated prices)" if summary.simulated else "")
    table = figures_table(title, "epoch", headers)
    accounts = [*summary.epochs, summary.rest, summary.total]
    return _filled(table, summary, [_cost_cells(*each) for each in zip(accounts, money(summary), strict=True)])


def _cost_cells(account: Account, shown: Money) -> list[str]:
    return [
        shown.cost,
        shown.spot,
        shown.on_demand,
        *([shown.own] if account.at_home else []),
        shown.kept,
        shown.all_on_demand,
        percent(account.savings),
        count(account.interruptions),
        count(account.steps_redone),
        *([shown.waiting] if account.size > 1 else []),
    ]


def time_table(summary: RunSummary) -> FiguresTable:
    headers = ["wall", "training", *(str(kind) for kind in DOWNTIME)]
    cells = [_time_cells(account) for account in (*summary.epochs, summary.rest, summary.total)]
    return _filled(figures_table("Where the time went", "epoch", headers), summary, cells)


def _time_cells(account: Account) -> list[str]:
    times = [account.wall, account.productive, *(account.times[kind] for kind in DOWNTIME)]
    return [short_duration(time) for time in times]


LOSS_FIGURES = ("notice", "noticed\nafter", "commit\nage", "steps\nlost", "first step\nafter")


def loss_table(summary: RunSummary) -> FiguresTable:
    """Return a table with the cost of each loss, for the newest `LOSSES_SHOWN`."""
    found = summary.losses
    shown = found[-LOSSES_SHOWN:]
    left_out = f" (the last {len(shown)} of {len(found)})" if len(shown) < len(found) else ""
    ended = dated("training\nended", summary.time_scale)
    heads = [*loss_texts(summary), *LOSS_FIGURES]
    table = figures_table(f"{losses_title(summary)}{left_out}", ended, heads, texts=range(len(loss_texts(summary)) + 1))
    for each in shown:
        add_row(table, [timestamp(each.at), *map(plain, loss_texts(summary, each)), *loss_cells(each, summary)])
    return table


def losses_title(summary: RunSummary) -> str:
    return "Interruptions and other losses" if _has_other_losses(summary) else "Interruptions"


def loss_texts(summary: RunSummary, found: Loss | None = None) -> list[str]:
    """
    Return the cells of a loss that are texts, or the heads of these columns if `found` is None. The column with the
    causes is left out if all losses are interruptions.
    """
    where, cause = ("where", "cause") if found is None else (lost_where(found), str(found.cause))
    return [where, cause] if _has_other_losses(summary) else [where]


def _has_other_losses(summary: RunSummary) -> bool:
    return any(each.cause is not Cause.INTERRUPTED for each in summary.losses)


def lost_where(found: Loss) -> str:
    """Describe where the loss happened and, for a gang, which members were lost."""
    return ", ".join([f"{found.offering.zone} {capacity_text(found.offering)}", *map(str, found.members)])


def loss_cells(found: Loss, summary: RunSummary) -> list[str]:
    """
    Return the cells for the columns in `LOSS_FIGURES`. For a command without checkpoints, the cells about steps
    are empty.
    """
    no_step = NOTHING if summary.plain else "not yet" if summary.state == "running" else "none"
    return [
        optional_duration(found.notice_lead, "none"),
        optional_duration(found.detection, NOTHING),
        optional_duration(found.commit_age, "no commit"),
        count(found.steps_lost),
        optional_duration(found.to_first_step, no_step),
    ]


def goodput(summary: RunSummary) -> str:
    total = summary.total
    trained = short_duration(total.size * total.productive)
    paid = f"Goodput {percent(total.goodput)}: {trained} of {short_duration(total.paid)} paid"
    hour, what = total.usd_per_productive_hour, "a kept hour" if summary.plain else "an hour of training"
    return f"{paid}." if hour is None else f"{paid}, {dollars(hour)} {what}."


def by_members(sizes: Sequence[OfSize]) -> str:
    """Return a text such as `4 members trained for 1h05m ($3.20), 2 members for 10m00s ($0.30)`."""
    parts = [
        f"{count_of(each.members, 'member')}{'' if number else ' trained'} for {short_duration(each.productive)} "
        f"({dollars(each.usd)})"
        for number, each in enumerate(sizes)
    ]
    return ", ".join(parts)


def _filled(table: FiguresTable, summary: RunSummary, cells: Sequence[list[str]]) -> FiguresTable:
    """
    Fill the table and return it. `cells` has a row for each epoch, one for everything that belongs to no completed
    epoch, and one for the total.
    """
    for epoch, figures in zip(summary.epochs, cells, strict=False):
        assert epoch.epoch is not None
        add_row(table, [str(epoch.epoch + 1), *figures])
    if summary.rest.cost_usd or summary.rest.wall:
        add_row(table, [summary.rest_name, *cells[-2]])
    table.add_section()
    add_row(table, ["total", *cells[-1]], style="bold")
    return table


def setups(summary: RunSummary) -> str:
    """
    Describe how long setup took on each instance. The first instance executes the command in `setup`; later instances
    only unpack the files that it made.
    """
    each = (f"attempt {summary.ordinals[attempt]} {_setup(setup)}" for attempt, setup in summary.setups.items())
    return f"Setup: {', '.join(each)}."


def _setup(setup: SetUp) -> str:
    size = f" ({gigabytes(setup.packed_bytes)})" if setup.packed_bytes else ""
    return f"{plain(setup.how)} in {short_duration(timedelta(seconds=setup.seconds))}{size}"


def _no_comparison(summary: RunSummary) -> str:
    if summary.state == "running":
        if summary.plain:
            return " so far; the time of a command without checkpoints counts as work once the command has succeeded"
        return " so far; nothing was trained yet that could be compared with on-demand"
    if summary.plain:
        return "; the command has not succeeded and has no checkpoints, so none of its time counts as work"
    return "; nothing was trained that could be compared with on-demand"


def _without_price(total: Account) -> str:
    """Describe how long nodes without a price were used, in node-hours."""
    hours = f"{total.paid / timedelta(hours=1):.2f} node-hours at no price"
    return f"{hours}, and {dollars(total.cost_usd)} for what is stored." if total.cost_usd else f"{hours}."


def at_home(summary: RunSummary) -> str:
    """Describe what the user's own machine cost (wear and power). No bill includes this cost."""
    total = summary.total
    hours = f"{total.own_paid / timedelta(hours=1):.2f} h"
    share = percent(float(total.own_paid / total.paid))
    each = dollars(to_nano(total.own_usd * SECONDS_PER_HOUR / exact_seconds(total.own_paid)))
    return f"At home: {hours} ({share} of the paid time) at {each} an hour, {dollars(total.own_usd)} in all."


def verdict(summary: RunSummary) -> str:
    """Return the main result in one sentence: what the run cost, and what it saved."""
    total = summary.total
    if total.paid and not (total.spot_usd or total.on_demand_usd or total.own_usd):
        return _without_price(total)
    if total.savings is None:
        return f"{dollars(total.cost_usd)}{_no_comparison(summary)}."
    paid = f"{dollars(total.cost_usd)} instead of {dollars(total.counterfactual_usd)} all on demand"
    share = percent(abs(total.savings))
    return f"{paid}: {share} saved." if total.savings >= 0 else f"{paid}: {share} more."
