"""Draws the cost of each epoch, the accumulated cost, and the downtime by cause."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from spotrun.account.summary import Account, RunSummary
from spotrun.account.timeline import DOWNTIME
from spotrun.account.totals import Bill
from spotrun.report.html.drawing import HEIGHT, ROW, TOP, axis, bar, curve, label, lane, legend, picture, plot, strip
from spotrun.report.html.markup import Markup, join
from spotrun.report.tables import dollars, short_duration
from spotrun.units import count_of

BARS_MAX = 300
NAMES_MAX, NARROW_NAMES_MAX = 20, 10


def epoch_costs(epochs: tuple[Account, ...]) -> Markup:
    """
    Draw a bar for each of the last `BARS_MAX` epochs. The parts of a bar are spot, on-demand, and storage (with
    requests and egress).
    """
    shown = epochs[-BARS_MAX:]
    most = max((epoch.cost_usd for epoch in shown), default=Decimal(0)) or Decimal(1)
    step = 100 / max(len(shown), 1)
    width = min(step * 0.8, 8)
    bars = [_stack(epoch, index * step, width, most) for index, epoch in enumerate(shown)]
    every = 1 + len(shown) // NAMES_MAX  # so that the numbers fit
    named = list(enumerate(shown))[::every]
    crowded = len(named) > NARROW_NAMES_MAX
    names = [
        label(index * step + width / 2, 14, str(epoch.epoch + 1), "middle", spare=crowded and number % 2 == 1)
        for number, (index, epoch) in enumerate(named)
        if epoch.epoch is not None
    ]
    number = count_of(len(shown), "epoch")
    said = f"Cost of {number}, at most {dollars(most)} each; the figures are in the table of epochs."
    own = [("own", "own machine")] if any(epoch.at_home for epoch in shown) else []
    keys = [("spot", "spot"), ("on_demand", "on-demand"), *own, ("storage", "storage, requests, egress")]
    return join(picture(said, plot(dollars(most), "", *bars), strip(ROW, *names)), legend(keys))


def _stack(epoch: Account, x: float, width: float, most: Decimal) -> Markup:
    parts, top = [], float(HEIGHT)
    rented = ((epoch.spot_usd, "spot"), (epoch.on_demand_usd, "on_demand"), (epoch.own_usd, "own"))
    for amount, class_ in (*rented, (epoch.kept_usd, "storage")):
        height = round(float(amount / most) * (HEIGHT - TOP), 2)
        top -= height
        if height:
            parts.append(bar(x, round(top, 2), width, height, class_))
    return join(*parts)


def cumulative(series: list[tuple[datetime, Bill]]) -> Markup:
    """
    Draw two curves over time: the accumulated cost of the run, and the accumulated cost if everything had run on
    demand.
    """
    paid = [float(bill.cost_usd) for _, bill in series]
    compared = [float(bill.counterfactual_usd) for _, bill in series]
    most = max([*paid, *compared]) or 1.0
    said = (
        f"Cumulative bill: {dollars(series[-1][1].cost_usd)} paid, "
        f"{dollars(series[-1][1].counterfactual_usd)} all on demand."
    )
    lines = [_line(compared, most, "all_on_demand"), _line(paid, most, "paid")]
    keys = [("key_paid", "paid"), ("key_all_on_demand", "all on demand (dashed)")]
    times = axis(["0", short_duration(series[-1][0] - series[0][0])])
    return join(picture(said, plot(dollars(Decimal(repr(most))), "$0", *lines), times), legend(keys))


def _line(amounts: list[float], most: float, class_: str) -> Markup:
    last = max(len(amounts) - 1, 1)
    return curve(((100 * i / last, amount / most) for i, amount in enumerate(amounts)), class_)


def downtime(summary: RunSummary) -> Markup:
    """Draw a bar for each cause of downtime. Each bar begins where the previous one ended. The last bar is the sum."""
    total = summary.total
    whole = total.downtime.total_seconds() or 1.0
    rows, before = [], 0.0
    for kind in DOWNTIME:
        width = 100 * total.times[kind].total_seconds() / whole
        rows.append(lane(str(kind), bar(before, 0, width, ROW, str(kind)), value=short_duration(total.times[kind])))
        before += width
    rows.append(lane("all", bar(0, 0, before, ROW, "wait"), value=short_duration(total.downtime)))
    causes = ", ".join(f"{kind} {short_duration(total.times[kind])}" for kind in DOWNTIME)
    return picture(f"Downtime {short_duration(total.downtime)}: {causes}", *rows)
