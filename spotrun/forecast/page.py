"""
Makes the page that `spotrun plan JOB.yaml --html FILE` writes: the forecast as one self-contained file.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING

from spotrun.forecast.report import COSTS, basis, cost_cells, expects, heading, lasting, time_cells, time_columns, usd
from spotrun.report.html.document import document
from spotrun.report.html.drawing import ROW, axis, bar, bars, lane, legend, picture, tick
from spotrun.report.html.markup import Markup, element, head, join, row, section, table
from spotrun.units import plain_usd

if TYPE_CHECKING:
    from spotrun.forecast.lifetime_forecast import Forecast
    from spotrun.forecast.plan import Plan

    Cells = Callable[[Plan, Forecast], list[str]]

CAUSES = (("restore", "starts", "changeover_s"), ("rework", "done twice", "rework_s"), ("wait", "waiting", "waiting_s"))
"""For each cause of downtime: the class of its mark, its label, and its field in a forecast."""


def forecast_page(plan: Plan, name: str) -> str:
    title = f"{name}: {heading(plan)}"
    body = element(
        "main",
        element("h1", title),
        element("p", " ".join([*basis(plan), "Nothing was rented."])),
        section("What it costs", _ranges(plan.forecasts), _table("Cost", list(COSTS), plan, cost_cells)),
        section(
            "When it is done, and what delays it",
            _downtime(plan.forecasts),
            _table("Times", time_columns(plan), plan, time_cells),
        ),
        element("p", expects(plan) or ""),
        section("Offerings, in the order of requests", _offerings(plan)),
        element("p", plan.assumed, class_="soft"),
    )
    return document(title, body)


def _named(forecast: Forecast) -> str:
    return f"{forecast.strategy}, {forecast.market}"


def _ranges(forecasts: tuple[Forecast, ...]) -> Markup:
    """Draw a line for each forecast, from the cost's P5 to its P95, with P50 marked. The scale starts at 0."""
    most = max(each.cost_p95_usd for each in forecasts) or 1.0
    rows = []
    for each in forecasts:
        low, middle, high = (100 * cost / most for cost in (each.cost_p5_usd, each.cost_p50_usd, each.cost_p95_usd))
        line = bar(low, 3, max(high - low, 0.3), ROW - 6, "range")
        rows.append(lane(_named(each), line, tick(middle, 0, 3, ROW, "middle")))
    said = "; ".join(
        f"{_named(each)}: {usd(each.cost_p5_usd)} to {usd(each.cost_p95_usd)}, P50 {usd(each.cost_p50_usd)}"
        for each in forecasts
    )
    return join(
        picture(f"Cost: {said}", *rows, axis(["$0", usd(most)])), legend([("range", "P5 to P95"), ("middle", "P50")])
    )


def _downtime(forecasts: tuple[Forecast, ...]) -> Markup:
    """Draw a bar for each forecast: its mean downtime, divided by cause."""
    whole = max(sum(_seconds(each)) for each in forecasts) or 1.0
    rows = []
    for each in forecasts:
        widths = [(100 * lost / whole, class_) for (class_, _, _), lost in zip(CAUSES, _seconds(each), strict=True)]
        rows.append(lane(_named(each), bars(0, ROW, widths)))
    said = "; ".join(f"{_named(each)}: {lasting(sum(_seconds(each)))}" for each in forecasts)
    keys = [(class_, meaning) for class_, meaning, _ in CAUSES]
    return join(picture(f"Mean downtime: {said}", *rows, axis(["0", lasting(whole)])), legend(keys))


def _seconds(forecast: Forecast) -> list[float]:
    found = [float(getattr(forecast, field)) for _, _, field in CAUSES]
    return [seconds if isfinite(seconds) else 0.0 for seconds in found]


def _table(caption: str, columns: list[str], plan: Plan, cells: Cells) -> Markup:
    rows = [row(_named(each), cells(plan, each)) for each in plan.forecasts]
    return table(caption, [head(name) for name in ("strategy, markets", *columns)], rows)


def _offerings(plan: Plan) -> Markup:
    rows = [
        row(str(each.offering), [f"${plain_usd(each.offering.price_usd_per_hour)}/h", each.why])
        for each in plan.offerings
    ]
    return table("Offerings", [head(name) for name in ("offering", "price", "why")], rows, class_="words")
