"""
Makes the page that `spotrun compare A B --html FILE` writes: several runs side by side, in one self-contained file.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import compress

from spotrun.account.summary import RunSummary
from spotrun.account.timeline import DOWNTIME, Activity
from spotrun.report.compare import ComparedRun, assumptions, comparison, trend, warnings
from spotrun.report.html import listings
from spotrun.report.html.document import document
from spotrun.report.html.drawing import ROW, bar, bars, lane, legend, picture
from spotrun.report.html.markup import Markup, element, figure, head, join, section, table
from spotrun.report.tables import NOTHING, count, dollars, short_duration
from spotrun.units import count_of

RUNS_MAX = 100


def comparison_page(summaries: Sequence[RunSummary], *, with_trend: bool) -> str:
    """
    Return a page that compares the last `RUNS_MAX` of the given runs. Each ratio is relative to the first of all given
    runs, even if the page does not show that run.

    If `with_trend` is True, the page also shows how the figures changed from run to run. In this case, all runs must
    have the same name and be sorted by age, oldest first.
    """
    runs = comparison(summaries)[-RUNS_MAX:]
    simulated = " (simulated prices)" if any(run.summary.simulated for run in runs) else ""
    left_out = f" (the last {RUNS_MAX} of {len(summaries)})" if len(summaries) > RUNS_MAX else ""
    title = f"{count_of(len(summaries), 'run')} side by side{simulated}"
    body = element(
        "main",
        element("h1", title),
        *(element("p", warning) for warning in warnings(runs)),
        *([_trend(summaries)] if with_trend else []),
        section(f"What each cost{simulated}{left_out}", _costs(runs)),
        section("Where the time went", _times(runs)),
        section("All figures", _table(runs)),
        element("p", f"Assumptions: {assumptions(summaries)}", class_="soft"),
    )
    return document(title, body)


def _trend(summaries: Sequence[RunSummary]) -> Markup:
    title, *lines = trend(summaries).splitlines()
    return section(title.rstrip(":"), element("ul", *(element("li", line.strip()) for line in lines)))


def _costs(runs: Sequence[ComparedRun]) -> Markup:
    """Draw two bars for each run: its cost, split by capacity type, and the cost that it would have had on demand."""
    totals = [run.summary.total for run in runs]
    most = max((max(total.cost_usd, total.counterfactual_usd) for total in totals), default=Decimal(0)) or Decimal(1)
    rows = []
    for run in runs:
        total = run.summary.total
        rented = ((total.spot_usd, "spot"), (total.on_demand_usd, "on_demand"), (total.own_usd, "own"))
        paid = (*rented, (total.kept_usd, "storage"))
        drawn = bars(0, 11, ((float(amount / most) * 100, class_) for amount, class_ in paid))
        compared = bar(0, 13, float(total.counterfactual_usd / most) * 100, 7, "wait")
        rows.append(lane(run.title, drawn, compared, value=dollars(total.cost_usd), height=20))
    said = ", ".join(f"{run.title} {dollars(run.summary.total.cost_usd)}" for run in runs)
    keys = [
        ("spot", "spot"),
        ("on_demand", "on-demand"),
        *([("own", "own machine")] if any(total.at_home for total in totals) else []),
        ("storage", "storage, requests, egress"),
        ("wait", "all on demand"),
    ]
    return join(picture(f"Cost: {said}", *rows), legend(keys))


def _times(runs: Sequence[ComparedRun]) -> Markup:
    most = max((run.summary.total.wall.total_seconds() for run in runs), default=0.0) or 1.0
    rows = []
    for run in runs:
        total = run.summary.total
        widths = (
            (total.times[kind].total_seconds() / most * 100, str(kind)) for kind in (Activity.PRODUCTIVE, *DOWNTIME)
        )
        rows.append(lane(run.title, bars(0, ROW, widths), value=short_duration(total.wall)))
    said = ", ".join(f"{run.title} {short_duration(run.summary.total.wall)}" for run in runs)
    keys = [("productive", "training"), *((str(kind), str(kind)) for kind in DOWNTIME)]
    return join(picture(f"Wall time: {said}", *rows), legend(keys))


def _table(runs: Sequence[ComparedRun]) -> Markup:
    own = any(run.summary.total.at_home for run in runs)
    names = ("state", "epochs", "ratio to the first", "cost per epoch", *listings.costs(own=own), *listings.OTHERS)
    rows = [_cells(run, own=own) for run in runs]
    filled = listings.filled_columns(rows)
    heads = [head(name if name == "state" else element("button", name, type="button")) for name in names]
    body = [
        element("tr", element("th", run.title, scope="row"), *compress(cells, filled))
        for run, cells in zip(runs, rows, strict=True)
    ]
    return table("Runs", [head("run"), *compress(heads, filled)], body)


def _cells(run: ComparedRun, *, own: bool) -> list[Markup]:
    summary = run.summary
    ratio, per_epoch = run.ratio_to_first, summary.usd_per_epoch
    return [
        element("td", summary.state),
        figure(count(len(summary.epochs)), len(summary.epochs)),
        figure(NOTHING if ratio is None else f"{ratio:.2f}x", ratio),
        figure(dollars(per_epoch), per_epoch),
        *listings.account_cells(summary.total, run.money, own=own),
    ]
