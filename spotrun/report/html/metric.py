"""A metric of the training over the dollars paid: what an improvement costs."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches

from spotrun.account.summary import bills_at
from spotrun.errors import SpecInvalid
from spotrun.report.html.drawing import axis, curve, dot, picture, plot
from spotrun.report.html.markup import Markup, element, join
from spotrun.report.tables import dollars, plain
from spotrun.run.state import RunState

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
    placed = [(100 * paid / most, (value - low) / spread) for paid, value in shown]
    dots = [dot(x, part, "key_paid") for x, part in placed]
    first, last = (f"{value:.4g} after {_usd(paid)}" for paid, value in (shown[0], shown[-1]))
    said = f"{plain(metric, 60)} over dollars: {first}, {last}; least {low:.4g}, most {high:.4g}."
    line = curve(placed, "paid")
    drawing = picture(said, plot(f"{high:.4g}", f"{low:.4g}", line, *dots), axis(["$0", _usd(most)]))
    return join(drawing, element("p", said, class_="soft"))


def _usd(amount: float) -> str:
    return dollars(Decimal(repr(amount)))
