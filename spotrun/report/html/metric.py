"""A metric of the training over the dollars paid: what an improvement costs."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches

from spotrun.account.summary import bills_at
from spotrun.errors import SpecInvalid
from spotrun.report.html.markup import Markup, baseline, element, join, label, picture
from spotrun.report.tables import dollars, plain
from spotrun.run.state import RunState

LEFT, WIDTH, HEIGHT = 110, 860, 220
POINTS_MAX = 1000
Point = tuple[float, float]
"""Dollars paid, and the metric's value."""


def points(state: RunState, now: datetime, metric: str) -> list[Point]:
    """
    The metric after each surviving epoch, over all dollars paid by then.

    Raises:
        SpecInvalid: no epoch has logged it; the message names the known metrics.
    """
    logged = [(epoch.at, epoch.event.metrics[metric]) for epoch in state.epochs if metric in epoch.event.metrics]
    if not logged:
        known = sorted({name for epoch in state.epochs for name in epoch.event.metrics})
        nearest = get_close_matches(metric, known, 1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"this run has {', '.join(known) or 'none yet'}"
        raise SpecInvalid(f"--metric: no epoch has logged {plain(metric, 60)!r}", hint=plain(advice))
    bills = bills_at(state, now, [at for at, _ in logged])
    return [(float(bill.cost_usd), value) for bill, (_, value) in zip(bills, logged, strict=True)]


def over_dollars(metric: str, found: list[Point]) -> Markup:
    """A line through the newest `POINTS_MAX` epochs, labelled with the smallest and the largest value."""
    shown = found[-POINTS_MAX:]
    most = max(paid for paid, _ in shown) or 1.0
    low, high = min(value for _, value in shown), max(value for _, value in shown)
    spread = (high - low) or 1.0
    placed = [(LEFT + WIDTH * paid / most, 15 + (HEIGHT - 30) * (1 - (value - low) / spread)) for paid, value in shown]
    line = Markup(" ".join(f"{x:.1f},{y:.1f}" for x, y in placed))
    dots = [element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="3", class_="key_paid") for x, y in placed]
    first, last = (f"{value:.4g} after {_usd(paid)}" for paid, value in (shown[0], shown[-1]))
    said = f"{plain(metric, 60)} over dollars: {first}, {last}; least {low:.4g}, most {high:.4g}."
    axis = [
        baseline(LEFT, LEFT + WIDTH, HEIGHT),
        label(0, 20, f"{high:.4g}"),
        label(0, HEIGHT - 10, f"{low:.4g}"),
        label(LEFT, HEIGHT + 15, "$0"),
        label(LEFT + WIDTH, HEIGHT + 15, _usd(most), "end"),
    ]
    drawing = picture(said, HEIGHT + 25, element("polyline", points=line, class_="paid"), *dots, *axis)
    return join(drawing, element("p", said, class_="soft"))


def _usd(amount: float) -> str:
    return dollars(Decimal(repr(amount)))
