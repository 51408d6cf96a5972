"""Drawings of dollars, for each epoch and as they added up, and of downtime by cause."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from spotrun.account.summary import Account, RunSummary
from spotrun.account.timeline import DOWNTIME
from spotrun.account.totals import Bill
from spotrun.report.html.markup import Markup, bar, baseline, element, join, label, legend, picture
from spotrun.report.tables import dollars, short_duration
from spotrun.units import count_of

LEFT, WIDTH, HEIGHT = 90, 890, 200
BARS_MAX = 300
NAMES_MAX = 20


def epoch_costs(epochs: tuple[Account, ...]) -> Markup:
    """A bar for each of the last `BARS_MAX` epochs: spot, on-demand, and storage with its requests and egress."""
    shown = epochs[-BARS_MAX:]
    most = max((epoch.cost_usd for epoch in shown), default=Decimal(0)) or Decimal(1)
    step = WIDTH / max(len(shown), 1)
    bars = [_stack(epoch, LEFT + index * step, min(step * 0.8, 60), most) for index, epoch in enumerate(shown)]
    every = 1 + len(shown) // NAMES_MAX  # as many numbers as there is room for
    named = [(index, epoch.epoch) for index, epoch in list(enumerate(shown))[::every] if epoch.epoch is not None]
    names = [label(LEFT + index * step, HEIGHT + 27, str(epoch + 1)) for index, epoch in named]
    number = count_of(len(shown), "epoch")
    said = f"Cost of {number}, at most {dollars(most)} each; the figures are in the table of epochs."
    keys = [("spot", "spot"), ("on_demand", "on-demand"), ("storage", "storage, requests, egress")]
    ground = baseline(LEFT, LEFT + WIDTH, HEIGHT + 10)
    return join(picture(said, HEIGHT + 30, label(0, 25, dollars(most)), ground, *bars, *names), legend(keys))


def _stack(epoch: Account, x: float, width: float, most: Decimal) -> Markup:
    parts, top = [], float(HEIGHT + 10)
    for amount, class_ in ((epoch.spot_usd, "spot"), (epoch.on_demand_usd, "on_demand"), (epoch.kept_usd, "storage")):
        height = round(float(amount / most) * (HEIGHT - 10), 2)
        top -= height
        if height:
            parts.append(bar(x, round(top, 2), width, height, class_))
    return join(*parts)


def cumulative(series: list[tuple[datetime, Bill]]) -> Markup:
    """What had been paid by each moment, and what all on demand would have cost by then."""
    paid = [float(bill.cost_usd) for _, bill in series]
    compared = [float(bill.counterfactual_usd) for _, bill in series]
    most = max([*paid, *compared]) or 1.0
    said = (
        f"Cumulative bill: {dollars(series[-1][1].cost_usd)} paid, "
        f"{dollars(series[-1][1].counterfactual_usd)} all on demand."
    )
    lines = [_line(compared, most, "all_on_demand"), _line(paid, most, "paid")]
    keys = [("key_paid", "paid"), ("key_all_on_demand", "all on demand (dashed)")]
    axes = [
        label(0, 25, dollars(Decimal(repr(most)))),
        label(0, HEIGHT + 12, "$0"),
        baseline(LEFT, LEFT + WIDTH, HEIGHT + 10),
        label(LEFT, HEIGHT + 27, "0"),
        label(LEFT + WIDTH, HEIGHT + 27, short_duration(series[-1][0] - series[0][0]), "end"),
    ]
    return join(picture(said, HEIGHT + 30, *axes, *lines), legend(keys))


def _line(amounts: list[float], most: float, class_: str) -> Markup:
    last = max(len(amounts) - 1, 1)
    points = (
        f"{LEFT + WIDTH * i / last:.1f},{HEIGHT + 10 - a / most * (HEIGHT - 10):.1f}" for i, a in enumerate(amounts)
    )
    return element("polyline", points=Markup(" ".join(points)), class_=class_)  # longer than any text may be


def downtime(summary: RunSummary) -> Markup:
    """A bar for each cause, beginning where the previous one ended; the last one is the sum."""
    total = summary.total
    whole = total.downtime.total_seconds() or 1.0
    rows, before = [], 0.0
    for row, kind in enumerate(DOWNTIME):
        seconds = total.times[kind].total_seconds()
        x, width = 190 + 800 * before / whole, 800 * seconds / whole
        text = label(0, row * 26 + 17, f"{kind} {short_duration(total.times[kind])}")
        rows.append(join(text, bar(x, row * 26 + 3, width, 18, str(kind))))
        before += seconds
    last = len(DOWNTIME) * 26
    rows.append(
        join(
            label(0, last + 17, f"all {short_duration(total.downtime)}"),
            bar(190, last + 3, 800 * before / whole, 18, "wait"),
        )
    )
    causes = ", ".join(f"{kind} {short_duration(total.times[kind])}" for kind in DOWNTIME)
    return picture(f"Downtime {short_duration(total.downtime)}: {causes}", last + 26, *rows)
