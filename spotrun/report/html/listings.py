"""
Builds the tables of the HTML report: epochs, attempts, losses and events. The columns have the same names as in
the terminal output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import compress

from spotrun.account.summary import Account, RunSummary
from spotrun.account.timeline import DOWNTIME
from spotrun.folder.machine_use import TypeUse
from spotrun.report.amounts import Money, money
from spotrun.report.describe import dated, describe
from spotrun.report.html.markup import Markup, element, figure, head, is_filled, row, table
from spotrun.report.machine_use import HEADS, cells
from spotrun.report.tables import count, dollars, percent, short_duration
from spotrun.report.terminal import LOSS_FIGURES, loss_cells, loss_texts
from spotrun.report.why import capacity_text
from spotrun.run.events import Entry
from spotrun.run.reasons import in_one_line
from spotrun.run.state import RunState
from spotrun.units import count_of

ROWS_MAX = 500
"""Maximum number of rows in each table. The newest rows are kept. The limit keeps the file small enough to mail."""
RENTED, KEPT = ("cost", "spot", "on-demand"), ("storage", "requests", "egress", "all on demand")
OTHERS = (
    *("saved", "wall", "training", *(str(kind) for kind in DOWNTIME), "interruptions", "steps redone"),
    *("paid", "goodput", "per training hour"),
)
WAITING = "waiting members"


def epochs(summary: RunSummary) -> Markup:
    """
    Build the table of epochs, with a row for each. The attribute `data-value` of a cell has the exact figure. Columns
    in which each cell is a dash are left out.
    """
    *shown, rest, total = money(summary)
    listed = list(zip(summary.epochs, shown, strict=True))[-ROWS_MAX:]
    rows = [(str(e.epoch + 1), _account(e, texts)) for e, texts in listed if e.epoch is not None]
    feet = [(summary.rest_name, _account(summary.rest, rest)), ("total", _account(summary.total, total))]
    of_gangs = (WAITING,) if summary.total.size > 1 else ()
    names = (*costs(own=summary.total.at_home), *OTHERS, *of_gangs)
    filled = filled_columns(cells for _, cells in rows + feet)
    heads = [head(element("button", name, type="button")) for name in ("epoch", *compress(names, filled))]
    body, foot = ([_figures(name, compress(cells, filled)) for name, cells in part] for part in (rows, feet))
    return table(f"Epochs{_cut(summary.epochs)}", heads, body, foot)


def glance(summary: RunSummary) -> Markup:
    """Return the key figures of the run."""
    total, hour = summary.total, dollars(summary.total.usd_per_productive_hour)
    epochs = {"epochs": count(len(summary.epochs)), "per epoch": dollars(summary.usd_per_epoch)}
    found = {
        "paid": dollars(total.cost_usd),
        "all on demand": dollars(total.counterfactual_usd),
        "saved": percent(total.savings),
        **({"per kept hour": hour} if summary.plain else {**epochs, "per training hour": hour}),
        "wall time": short_duration(total.wall),
        "downtime": short_duration(total.downtime),
        "interruptions": count(total.interruptions),
        "goodput": percent(total.goodput),
    }
    pairs = (element("div", element("dt", name), element("dd", text)) for name, text in found.items())
    return element("dl", *pairs, class_="glance")


def losses(summary: RunSummary) -> Markup:
    """
    Build the table with the cost of each loss. Column heads are on one line here, and on several lines on the
    terminal.
    """
    found = summary.losses
    rows = [
        row(
            str(summary.ordinals[each.attempt]),
            [f"{each.at:%Y-%m-%d %H:%M:%S}", *loss_texts(summary, each), *loss_cells(each, summary)],
        )
        for each in found[-ROWS_MAX:]
    ]
    ended = dated("training ended", summary.time_scale)
    names = ("attempt", ended, *loss_texts(summary), *(name.replace("\n", " ") for name in LOSS_FIGURES))
    return table(f"What each cost{_cut(found)}", [head(name) for name in names], rows, class_="words")


def gaps(summary: RunSummary) -> Markup:
    rows = [row(gap.place, [gap.what, f"{gap.step:,}", count(gap.resumes)]) for gap in summary.gaps]
    heads = [head(name) for name in ("where", "what", "changed by step", "resumes without it")]
    return table("What no checkpoint holds", heads, rows, class_="words")


def machines(found: Sequence[TypeUse]) -> Markup:
    rows = [row(each.instance_type, cells(each)) for each in found]
    heads = [head(name) for name in ("type", *(name.replace("\n", " ") for name in HEADS))]
    return table("While they trained, by type", heads, rows)


def attempts(state: RunState) -> Markup:
    rows, ordinals = [], state.ordinals()
    for attempt in list(state.attempts.values())[-ROWS_MAX:]:
        offering = state.launch_of(attempt).intent.offering
        end = (
            "" if attempt.end is None else f"{attempt.end.cause}: {in_one_line(attempt.end.detail)}".removesuffix(": ")
        )
        notice = "" if attempt.notice_at is None else f"{attempt.notice_at:%Y-%m-%d %H:%M:%S}"
        began = f"{attempt.started_at:%Y-%m-%d %H:%M:%S}"
        place = (offering.zone, offering.instance_type, capacity_text(offering))
        members = [", ".join(map(str, attempt.names))] if state.of_gangs else []
        rows.append(row(str(ordinals[attempt.number]), [began, *members, *place, notice, end]))
    started, members = dated("started", state.created.time_scale), ["members"] if state.of_gangs else []
    heads = [head(name) for name in ("attempt", started, *members, "zone", "type", "capacity", "notice", "end")]
    return table(f"Attempts{_cut(tuple(state.attempts))}", heads, rows, class_="words")


def events(entries: Sequence[Entry], ordinals: Mapping[int, int], time_scale: float) -> Markup:
    """
    Return the events in a `details` element, which is collapsed at first, because the events would fill most of the
    page.
    """
    rows = [row(str(e.number), [f"{e.at:%Y-%m-%d %H:%M:%S}", describe(e, ordinals)]) for e in entries[-ROWS_MAX:]]
    heads = [head(name) for name in ("entry", dated("when", time_scale), "what happened")]
    listed = table(f"Events{_cut(entries)}", heads, rows, class_="words")
    return element("details", element("summary", f"Show the {count_of(len(rows), 'entry', 'entries')}"), listed)


def _cut(rows: Sequence[object]) -> str:
    return f" (the last {ROWS_MAX} of {len(rows)})" if len(rows) > ROWS_MAX else ""


def _account(a: Account, shown: Money) -> list[Markup]:
    of_gangs = [figure(shown.waiting, a.waiting_usd)] if a.size > 1 else []
    return [*account_cells(a, shown, own=a.at_home), *of_gangs]


def _figures(name: str, cells: Iterable[Markup]) -> Markup:
    return element("tr", element("th", name, scope="row", data_value=name), *cells)


def filled_columns(rows: Iterable[Sequence[Markup]]) -> list[bool]:
    """Return, for each column of the table, True if one of its cells shows more than a dash."""
    return [any(map(is_filled, column)) for column in zip(*rows, strict=True)]


def costs(*, own: bool) -> tuple[str, ...]:
    """
    Return the names of the columns in dollars. If `own` is True, one of them is the column for the cost of the user's
    own machine.
    """
    return (*RENTED, *(("own machine",) if own else ()), *KEPT)


def account_cells(a: Account, shown: Money, *, own: bool) -> list[Markup]:
    """
    Return one account's cells: first the cells of the columns that `costs` names, then the cells of the columns in
    `OTHERS`.
    """
    used, used_text = ((a.own_usd,), (shown.own,)) if own else ((), ())
    exact = (a.cost_usd, a.spot_usd, a.on_demand_usd, *used, a.storage_usd, a.requests_usd, a.egress_usd)
    paid = (shown.cost, shown.spot, shown.on_demand, *used_text, shown.storage, shown.requests, shown.egress)
    exact, paid = (*exact, a.counterfactual_usd), (*paid, shown.all_on_demand)
    times = (a.wall, a.productive, *(a.times[kind] for kind in DOWNTIME))
    return [
        *(figure(text, amount) for text, amount in zip(paid, exact, strict=True)),
        figure(percent(a.savings), a.savings),
        *(duration(time) for time in times),
        *(figure(count(number), number) for number in (a.interruptions, a.steps_redone)),
        duration(a.paid),
        figure(percent(a.goodput), a.goodput),
        figure(dollars(a.usd_per_productive_hour), a.usd_per_productive_hour),
    ]


def duration(time: timedelta) -> Markup:
    return figure(short_duration(time), time.total_seconds())
