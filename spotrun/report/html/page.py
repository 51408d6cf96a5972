"""
Makes the page of a run: the whole report in one self-contained file (`spotrun report RUN --html FILE`), or as a live
page (`spotrun view`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from spotrun.account.gang_sizes import intervals
from spotrun.account.summary import bill_series, summarise
from spotrun.folder.machine_use import TypeUse
from spotrun.folder.run_calls import RunnerCalls
from spotrun.report import runner_calls
from spotrun.report.html import listings
from spotrun.report.html import metric as drawing
from spotrun.report.html.chart import chart, scale_of
from spotrun.report.html.costs import cumulative, downtime, epoch_costs
from spotrun.report.html.document import document
from spotrun.report.html.gang_sizes import TITLE as TITLE_OF_SIZES
from spotrun.report.html.gang_sizes import gang_sizes
from spotrun.report.html.made_with import made_with
from spotrun.report.html.markup import Markup, element, join, section
from spotrun.report.html.prices import price_curve
from spotrun.report.machine_use import TITLE
from spotrun.report.tables import plain
from spotrun.report.terminal import headline, losses_title, verdict
from spotrun.run.events import Entry
from spotrun.run.state import RunState

POINTS = 200


def page(
    state: RunState,
    entries: Sequence[Entry],
    now: datetime,
    metric: str | None = None,
    machines: Sequence[TypeUse] = (),
    calls: RunnerCalls | None = None,
    live: Markup | None = None,
) -> str:
    """
    Return the report of a run as of `now`. `machines` has the utilization of the run's machines. If the run's runner
    was a function in the cloud, `calls` has the cost of its calls. If `metric` is given, the page has a curve of this
    metric over the dollars paid. If `live` is given, the page begins with it, and keeps itself up to date.

    Raises:
        SpecInvalid: no epoch has logged that metric.
    """
    summary = summarise(state, now)
    prices = " (simulated prices)" if summary.simulated else ""
    bill = "Bill so far" if summary.ended_at is None else "Bill"
    body = element(
        "main",
        live or join(),
        element("h1", headline(summary)),
        element("p", verdict(summary)),
        listings.glance(summary),
        section("Course of the run", chart(state, now), listings.attempts(state)),
        *([section(losses_title(summary), listings.losses(summary))] if summary.losses else []),
        *_members(state, now),
        section(f"Cost per epoch{prices}", epoch_costs(summary.epochs), listings.epochs(summary)),
        section(f"{bill} against all on demand{prices}", cumulative(bill_series(state, now, POINTS))),
        section(f"Price of an hour{prices}", price_curve(state, now)),
        *([] if metric is None else [_metric(state, now, metric, prices)]),
        *_over_time(state, now, metric or drawing.training_loss(state)),
        section("Downtime by cause", downtime(summary)),
        *([section(TITLE, listings.machines(machines))] if machines else []),
        *([] if calls is None else [section(runner_calls.TITLE, element("p", runner_calls.in_words(calls)))]),
        *([section("In no checkpoint", listings.gaps(summary))] if summary.gaps else []),
        section("Made with", made_with(state)),
        section("Events", listings.events(entries, summary.ordinals, summary.time_scale)),
        element("p", f"Assumptions: {summary.assumptions}", class_="soft"),
    )
    return document(headline(summary), body, live=live is not None)


def _members(state: RunState, now: datetime) -> list[Markup]:
    """Return a section with the number of members that trained; none if this number never changed."""
    found = intervals(state, now)
    return [section(TITLE_OF_SIZES, gang_sizes(found, scale_of(state, now), state.created.size))] if found else []


def _metric(state: RunState, now: datetime, metric: str, prices: str) -> Markup:
    found = drawing.points(state, now, metric)
    return section(f"{metric} over dollars{prices}", drawing.over_dollars(metric, found))


def _over_time(state: RunState, now: datetime, metric: str | None) -> list[Markup]:
    """Return a section that draws the metric over time; none if fewer than two commits have the metric."""
    found = [] if metric is None else drawing.at_commits(state, now, metric)
    if metric is None or len(found) < 2:
        return []
    return [section(f"{plain(metric, 60)} over time", drawing.over_time(metric, found))]
