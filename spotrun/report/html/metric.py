"""Draws a metric of the training as a curve. The x axis is either the dollars paid or the time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from math import ceil

from spotrun.account.summary import bills_at
from spotrun.account.timeline import account_end
from spotrun.errors import SpecInvalid
from spotrun.report.html.drawing import axis, curve, dot, picture, plot
from spotrun.report.html.markup import Markup, element, join
from spotrun.report.tables import dollars, plain, short_duration
from spotrun.run.state import Commit, RunState

POINTS_MAX = 1000
DOTS_MAX = 100
Point = tuple[float, float]
"""
A point of a curve. Its x is the dollars paid so far, or the seconds of run time since the run's creation. Its y is the
metric's value at that moment.
"""


def points(state: RunState, now: datetime, metric: str) -> list[Point]:
    """
    Return a point for each completed epoch whose result was kept. The point's x is the dollars paid by the end of the
    epoch, and its y is the metric's value at the end of the epoch.

    Raises:
        SpecInvalid: no epoch has logged the metric; the message names the metrics that were logged.
    """
    logged = [(epoch.at, epoch.event.metrics[metric]) for epoch in state.epochs if metric in epoch.event.metrics]
    if not logged:
        known = sorted({name for epoch in state.epochs for name in epoch.event.metrics})
        nearest = get_close_matches(metric, known, 1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"this run has {', '.join(known) or 'none yet'}"
        raise SpecInvalid(f"--metric: no epoch has logged {plain(metric, 60)!r}", hint=plain(advice))
    bills = bills_at(state, now, [at for at, _ in logged])
    return [(float(bill.cost_usd), value) for bill, (_, value) in zip(bills, logged, strict=True)]


def training_loss(state: RunState) -> str | None:
    """
    Return the name of the metric that is most likely the training's loss. Only metrics of commits whose result was kept
    are considered. Return None if no metric has "loss" in its name.
    """
    names = dict.fromkeys(name for commit in _surviving(state) for name in commit.event.metrics)
    return min((name for name in names if "loss" in name.lower()), key=_strangeness, default=None)


def _strangeness(name: str) -> tuple[bool, bool, bool, bool]:
    name = name.lower().replace("/", "_")
    elsewhere = any(word in name for word in ("val", "test"))
    return name != "train_loss", name != "loss", elsewhere, "train" not in name


def at_commits(state: RunState, now: datetime, metric: str) -> list[Point]:
    """
    Return a point for each commit whose result was kept. The point's x is the time since the run's creation, and its y
    is the metric's value at the commit.

    The times never decrease, even if the clocks of two machines differ.
    """
    found: list[Point] = []
    at, end = state.created_at, account_end(state, now)
    for commit in _surviving(state):
        if metric in commit.event.metrics:
            at = max(at, min(commit.event.taken_at, end))
            found.append(((at - state.created_at).total_seconds(), commit.event.metrics[metric]))
    return found


def _surviving(state: RunState) -> list[Commit]:
    return [commit for commit in state.commits if not commit.cut_off]


def over_time(metric: str, found: list[Point]) -> Markup:
    return _drawn(metric, found, "time", lambda seconds: short_duration(timedelta(seconds=seconds)) if seconds else "0")


def over_dollars(metric: str, found: list[Point]) -> Markup:
    return _drawn(metric, found, "dollars", _usd)


def _drawn(metric: str, found: list[Point], over: str, said_as: Callable[[float], str]) -> Markup:
    """
    Draw a line through at most `POINTS_MAX` of the points, always including the last point. Label the largest and the
    smallest value.
    """
    shown = found[:: -ceil(len(found) / POINTS_MAX)][::-1]
    most = max(paid for paid, _ in shown) or 1.0
    low, high = min(value for _, value in shown), max(value for _, value in shown)
    spread = (high / 2 - low / 2) or 1.0  # halves, because the whole range may be too large for a float
    placed = [(100 * paid / most, (value / 2 - low / 2) / spread) for paid, value in shown]
    dots = [dot(x, part, "key_paid") for x, part in placed] if len(placed) <= DOTS_MAX else []
    first, last = (f"{value:.4g} after {said_as(paid)}" for paid, value in (shown[0], shown[-1]))
    said = f"{plain(metric, 60)} over {over}: {first}, {last}; least {low:.4g}, most {high:.4g}."
    line = curve(placed, "paid")
    drawing = picture(said, plot(f"{high:.4g}", f"{low:.4g}", line, *dots), axis([said_as(0), said_as(most)]))
    return join(drawing, element("p", said, class_="soft"))


def _usd(amount: float) -> str:
    return dollars(Decimal(repr(amount)))
