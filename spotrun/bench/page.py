"""
Creates the HTML page that `spotrun bench JOB --html FILE` writes: a job's speed and price on each instance type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spotrun.bench.report import begin_table, findings, money_table, speed_table
from spotrun.bench.result import BenchRow, cheapest
from spotrun.report.html.document import document
from spotrun.report.html.drawing import ROW, bar, bars, lane, legend, picture
from spotrun.report.html.markup import Markup, element, head, join, row, section, table
from spotrun.report.tables import FiguresTable


def bench_page(rows: Sequence[BenchRow], name: str, samples: float | None, against: str | None) -> str:
    said = element("ul", *(element("li", line) for line in findings(rows, samples)))
    figures = (speed_table(rows), money_table(rows, samples, against), begin_table(rows))
    body = (
        section("Found", said),
        *_charts([each for each in rows if each.measured]),
        section("All figures", *map(_listed, figures)),
    )
    return document(f"Bench of {name}", element("main", element("h1", f"Bench of {name}"), *body))


def _charts(measured: Sequence[BenchRow]) -> Iterator[Markup]:
    if measured:
        yield section("Samples a second", _bars(measured, lambda each: each.rate or 0.0))
        yield section("Samples per dollar", _bars(measured, lambda each: each.per_usd(cheapest(each.prices)) or 0.0))
        yield section("A step", _steps(measured))


def _bars(rows: Sequence[BenchRow], figure: Callable[[BenchRow], float]) -> Markup:
    most = max(map(figure, rows)) or 1.0
    drawn = [
        lane(each.trial.name, bar(0, 0, figure(each) / most * 100, ROW, "productive"), value=f"{figure(each):,.0f}")
        for each in rows
    ]
    return picture(", ".join(f"{each.trial.name} {figure(each):,.0f}" for each in rows), *drawn)


def _steps(rows: Sequence[BenchRow]) -> Markup:
    """Draw, for each training, how a step divides into computing and waiting for data."""
    drawn = []
    for each in rows:
        assert each.measured is not None
        waits = each.measured.data_wait * 100
        parts = bars(0, ROW, [(100 - waits, "productive"), (waits, "wait")])
        drawn.append(lane(each.trial.name, parts, value=f"{waits:.0f}%"))
    said = ", ".join(f"{each.trial.name} waits {each.measured.data_wait:.0%}" for each in rows if each.measured)
    return join(picture(said, *drawn), legend([("productive", "computes"), ("wait", "waits for data")]))


def _listed(found: FiguresTable) -> Markup:
    heads = [head(text.replace("\n", " ")) for text in found.heads]
    return table(found.title, heads, [row(cells[0], list(cells[1:])) for cells, *_ in found.rows])
