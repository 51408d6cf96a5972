"""Draws the hourly price of each instance during the run, and the on-demand price."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal

from spotrun.account.prices import Charge, charges
from spotrun.account.timeline import account_end
from spotrun.offering import CapacityType
from spotrun.report.html.chart import Scale
from spotrun.report.html.drawing import HEIGHT, axis, bar, curve, legend, level, picture, plot
from spotrun.report.html.markup import Markup, element, join
from spotrun.report.tables import dollars, short_duration
from spotrun.run.state import Launch, RunState
from spotrun.units import count_of

INSTANCES_MAX = 300
Billed = tuple[Launch, list[Charge]]


def price_curve(state: RunState, now: datetime) -> Markup:
    """
    Draw the prices of the newest `INSTANCES_MAX` billed launches. There is one bar for each period in which a launch's
    price did not change. A bar's width is the length of the period and its height is the price, so its area is the
    amount paid.
    """
    end = account_end(state, now)
    scale = Scale(state.created_at, end)
    paid = [(launch, charges(launch, state.created.billing, end)) for launch in state.launches.values()]
    found = [each for each in paid if each[1]]
    if not found:
        return element("p", "Nothing has been billed.")
    shown = found[-INSTANCES_MAX:]
    priced = [charge.usd_per_hour for _, charged in shown for charge in charged]
    highest = max([*priced, *(launch.intent.on_demand_usd_per_hour for launch, _ in shown)]) or Decimal(1)
    line = curve([(x, float(price / highest)) for x, price in _on_demand(shown, scale)], "all_on_demand")
    left_out = (
        f" Not drawn: {count_of(len(found) - len(shown), 'earlier instance')}." if len(found) > len(shown) else ""
    )
    said = (
        f"Price of an hour: {dollars(min(priced))} to {dollars(max(priced))} paid, the newest "
        f"{dollars(shown[-1][1][-1].usd_per_hour)}; "
        f"{dollars(shown[-1][0].intent.on_demand_usd_per_hour)} on demand.{left_out}"
    )
    drawn = plot(f"{dollars(highest)}/h", "", *_bars(shown, scale, highest), line)
    keys = [
        ("spot", "paid for spot"),
        ("on_demand", "paid on demand"),
        *([("own", "own machine")] if any(_is_own(launch) for launch, _ in shown) else []),
        ("key_all_on_demand", "price on demand (dashed)"),
    ]
    times = axis(["0", short_duration(scale.end - scale.start)])
    return join(picture(said, drawn, times), legend(keys), element("p", said, class_="soft"))


def _is_own(launch: Launch) -> bool:
    return launch.intent.offering.capacity_type is CapacityType.OWN


def _bars(shown: Sequence[Billed], scale: Scale, highest: Decimal) -> Iterator[Markup]:
    """
    Yield one bar for each price at which an instance was billed, highest first. Later bars are drawn over earlier ones,
    so a lower bar stays visible where bars overlap. If several bars of one capacity type are too narrow to see, only
    one of them is drawn.
    """
    drawn = sorted(
        ((charge, str(launch.intent.offering.capacity_type)) for launch, charged in shown for charge in charged),
        key=lambda each: each[0].usd_per_hour,
        reverse=True,
    )
    seen: set[tuple[float, str]] = set()
    for charge, class_ in drawn:
        x = scale.x(charge.since)
        width = scale.x(charge.until) - x
        if width < 0.1 and (round(x, 1), class_) in seen:
            continue
        seen.add((round(x, 1), class_))
        top = level(float(charge.usd_per_hour / highest))
        yield bar(x, round(top, 1), width, round(HEIGHT - top, 1), class_)


def _on_demand(shown: Sequence[Billed], scale: Scale) -> Iterator[tuple[float, Decimal]]:
    """
    Yield the points of a curve of the on-demand price. At each time, the curve shows the on-demand price of the newest
    instance's type. Where this price changes, the curve has a vertical step.
    """
    before: Decimal | None = None
    for launch, charged in sorted(shown, key=lambda each: each[1][0].since):
        price = launch.intent.on_demand_usd_per_hour
        if price != before:
            x = scale.x(charged[0].since)
            if before is not None:
                yield x, before
            yield x, price
        before = price
    if before is not None:
        yield 100.0, before
