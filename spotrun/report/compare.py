"""Shows the bills of several runs side by side, for `spotrun compare A B`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from spotrun.account.summary import RunSummary
from spotrun.account.timeline import DOWNTIME, Activity
from spotrun.report.amounts import Money, money
from spotrun.report.machine_readable import cost_range, csv_text, figures, json_object, rounded
from spotrun.report.tables import (
    NOTHING,
    FiguresTable,
    add_row,
    count,
    dollars,
    figures_table,
    percent,
    plain,
    print_figures,
    scale_mark,
    short_duration,
)

NAME_MAX = 32
_SIGNS = re.compile(r"[\\`*_{}\[\]()<>#+!|~&]")


@dataclass(frozen=True)
class ComparedRun:
    """
    One of the compared runs.

    `ratio_to_first` is this run's cost divided by the first run's; None if the first run cost nothing. `unlike_first`
    lists the ways in which this run's work differs from the first run's work.
    """

    summary: RunSummary
    ratio_to_first: float | None
    unlike_first: tuple[str, ...]

    @property
    def title(self) -> str:
        """The run's name. If the run's time passed faster than the wall clock, a mark shows how much faster."""
        return plain(self.summary.run, NAME_MAX) + scale_mark(self.summary.time_scale)

    @cached_property
    def money(self) -> Money:
        return money(self.summary)[-1]


def comparison(summaries: Sequence[RunSummary]) -> tuple[ComparedRun, ...]:
    """Return the runs in the given order, each compared with the first."""
    first = summaries[0]
    return tuple(ComparedRun(run, _ratio(run, first), tuple(run.work.unlike(first.work))) for run in summaries)


def _ratio(summary: RunSummary, first: RunSummary) -> float | None:
    if not first.total.cost_usd:
        return None
    return float(summary.total.cost_usd / first.total.cost_usd)


def warnings(runs: Sequence[ComparedRun]) -> list[str]:
    """Return a warning for each group of runs whose work differs from the first run's in the same way."""
    by_difference: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        if run.unlike_first:
            by_difference.setdefault(run.unlike_first, []).append(plain(run.summary.run, NAME_MAX))
    return [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not the same work as "
        f"{plain(runs[0].summary.run, NAME_MAX)}: {', '.join(unlike)}."
        for unlike, names in by_difference.items()
    ]


def show(summaries: Sequence[RunSummary], console: Console | None = None) -> None:
    """Print the comparison: a row for each figure, a column for each run."""
    print_figures(side_by_side(summaries), console)


def as_json(summaries: Sequence[RunSummary]) -> dict[str, Any]:
    """Return the output of `spotrun compare --json`, as plain values: the totals of the runs in the given order."""
    return {"runs": [_figures(run) for run in comparison(summaries)]}


def trend(summaries: Sequence[RunSummary]) -> str:
    """
    Return one line per key figure: its value in each run, and the change from the first run to the last. `summaries`
    are runs of the same name, the oldest first.
    """
    alike = len({run.time_scale for run in summaries}) == 1

    def mark(run: RunSummary) -> str:
        return "" if alike else scale_mark(run.time_scale)

    by_name: dict[str, list[tuple[Decimal | float | None, str]]] = {
        "cost": [(run.total.cost_usd, dollars(run.total.cost_usd) + mark(run)) for run in summaries],
        **_price_of_work(summaries, mark),
        "wall time": [
            (run.total.wall.total_seconds(), short_duration(run.total.wall) + mark(run)) for run in summaries
        ],
        "interruptions": [(run.total.interruptions, str(run.total.interruptions)) for run in summaries],
    }
    lines = [f"  {name}: {', '.join(text for _, text in series)}{_change(series)}" for name, series in by_name.items()]
    return "\n".join([f"Trend of the last {len(summaries)}, the oldest first:", *lines])


def _price_of_work(
    summaries: Sequence[RunSummary], mark: Callable[[RunSummary], str]
) -> dict[str, list[tuple[Decimal | float | None, str]]]:
    """
    Return the cost per epoch of each run. If all runs are commands, which have no epochs, return the cost per
    productive hour instead.
    """
    if all(run.plain for run in summaries):
        hours = [(run.total.usd_per_productive_hour, mark(run)) for run in summaries]
        return {"cost per kept hour": [(usd, dollars(usd) + marked) for usd, marked in hours]}
    return {"cost per epoch": [(run.usd_per_epoch, dollars(run.usd_per_epoch) + mark(run)) for run in summaries]}


def _change(series: Sequence[tuple[Decimal | float | None, str]]) -> str:
    first, last = series[0][0], series[-1][0]
    if not first or last is None or len(series) < 2:
        return ""
    return f" ({(float(last) / float(first) - 1) * 100:+.0f}%)"


def csv(summaries: Sequence[RunSummary]) -> str:
    """Return the comparison as CSV, one row for each run."""
    return csv_text([_figures(run) for run in comparison(summaries)], last="assumptions")


def markdown(summaries: Sequence[RunSummary], *, with_trend: bool = False) -> str:
    """Return the table of `show` in Markdown. If `with_trend` is True, the trend follows below it."""
    runs = comparison(summaries)
    rows = [["", *(run.title for run in runs)], ["---", *("---:" for _ in runs)]]
    rows += [
        [label.strip(), *(figure(run) for run in runs)] for section in _sections(runs) for label, figure in section
    ]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    above = [line for warning in warnings(runs) for line in (_cell(warning), "")]
    heading, *changes = trend(summaries).splitlines() if with_trend else ("",)
    below = ["", _cell(heading), "", *(f"- {_cell(line.strip())}" for line in changes)] if with_trend else []
    return "\n".join([*above, *lines, *below, "", f"Assumptions: {_cell(assumptions(summaries))}", ""])


def _cell(text: str) -> str:
    """Escape Markdown's special characters, so that a name cannot become a link, a picture or a tag."""
    return _SIGNS.sub(r"\\\g<0>", text)


def assumptions(summaries: Sequence[RunSummary]) -> str:
    """
    Return the assumptions behind the figures, each only once. If an assumption applies only to some of the runs, it is
    followed by their names.
    """
    holders: dict[str, list[str]] = {}
    for summary in summaries:
        for part in plain(summary.assumptions).split("; "):
            holders.setdefault(part, []).append(plain(summary.run, NAME_MAX))
    return "; ".join(
        part if len(names) == len(summaries) else f"{part} ({', '.join(names)})" for part, names in holders.items()
    )


def _figures(run: ComparedRun) -> dict[str, Any]:
    summary = run.summary
    total = {key: value for key, value in figures(summary.total).items() if key != "epoch"}
    return json_object(
        run=plain(summary.run),
        name=plain(summary.name),
        state=summary.state,
        num_nodes=summary.work.nodes,
        epochs=len(summary.epochs),
        **total,
        savings=rounded(summary.total.savings),
        usd_per_epoch=summary.usd_per_epoch,
        ratio_to_first=rounded(run.ratio_to_first),
        unlike_first=", ".join(run.unlike_first),
        time_scale=summary.time_scale,
        **{"least_usd": None, "most_usd": None, **cost_range(summary)},
        assumptions=plain(summary.assumptions),
    )


def side_by_side(summaries: Sequence[RunSummary]) -> RenderableType:
    runs = comparison(summaries)
    above = [part for warning in warnings(runs) for part in (Text(warning), Text())]
    return Group(*above, compare_table(runs), Text(), Text(f"Assumptions: {assumptions(summaries)}", style="dim"))


def compare_table(runs: Sequence[ComparedRun]) -> FiguresTable:
    title = "Side by side"
    if any(run.summary.simulated for run in runs):
        title += " (simulated prices)"
    table = figures_table(title, "", [run.title for run in runs])
    for section in _sections(runs):
        for label, figure in section:
            add_row(table, [label, *(figure(run) for run in runs)], style="bold" if label in _KEY_FIGURES else "")
        table.add_section()
    return table


Figure = Callable[[ComparedRun], str]
Section = tuple[tuple[str, Figure], ...]


def _time(kind: Activity) -> Figure:
    return lambda run: short_duration(run.summary.total.times[kind])


def _ratio_text(run: ComparedRun) -> str:
    return NOTHING if run.ratio_to_first is None else f"{run.ratio_to_first:.2f}x"


def _sections(runs: Sequence[ComparedRun]) -> Sequence[Section]:
    """Return the sections of the table. `num_nodes` is left out if all runs train on one instance."""
    first, paid, *others = _SECTIONS
    if any(run.summary.total.at_home for run in runs):
        at = [label for label, _ in paid].index("  on-demand") + 1
        paid = (*paid[:at], ("  own machine", lambda run: run.money.own), *paid[at:])
    if all(run.summary.work.nodes == 1 for run in runs):
        return [first, paid, *others]
    return [(*first, ("num_nodes", lambda run: count(run.summary.work.nodes))), paid, *others]


_KEY_FIGURES = ("cost", "ratio to the first", "wall time")
_SECTIONS: tuple[Section, ...] = (
    (("state", lambda run: run.summary.state), ("epochs", lambda run: count(len(run.summary.epochs)))),
    (
        ("cost", lambda run: run.money.cost),
        ("ratio to the first", _ratio_text),
        ("  spot", lambda run: run.money.spot),
        ("  on-demand", lambda run: run.money.on_demand),
        ("  storage, requests, egress", lambda run: run.money.kept),
        ("cost per epoch", lambda run: dollars(run.summary.usd_per_epoch)),
        ("cost per training hour", lambda run: dollars(run.summary.total.usd_per_productive_hour)),
        ("all on demand", lambda run: run.money.all_on_demand),
        ("saved", lambda run: percent(run.summary.total.savings)),
    ),
    (
        ("wall time", lambda run: short_duration(run.summary.total.wall)),
        ("  training", lambda run: short_duration(run.summary.total.productive)),
        *((f"  {kind}", _time(kind)) for kind in DOWNTIME),
        ("goodput", lambda run: percent(run.summary.total.goodput)),
        ("interruptions", lambda run: count(run.summary.total.interruptions)),
        ("steps redone", lambda run: count(run.summary.total.steps_redone)),
    ),
)
