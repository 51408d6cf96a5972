"""What an hour has cost as a run went on, in one line."""

from __future__ import annotations

import io
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from rich.console import Console

from spotrun.account.prices import WIDTH, charges, hourly_prices
from spotrun.instance import PriceSegment
from spotrun.report.live import LiveView
from spotrun.report.overview import prices
from spotrun.report.sparkline import BARS, sparkline
from spotrun.runner.tick import Tick
from tests.support.decisions import spec
from tests.support.histories import ON_DEMAND, History, gone, random_runs
from tests.support.manual_clock import ManualClock


def dearer() -> History:
    """Spot that becomes dearer and goes, then on-demand."""
    history = History()
    history.after(90)
    first = history.running(price="0.30")
    changed = history.after(210).now
    history.after(190).gone(first, dearer_since=(changed, "0.60"))
    history.after(90)
    history.running(ON_DEMAND, "3.00")
    history.after(410)
    return history


def test_each_stretch_of_an_instance_has_its_own_price() -> None:
    history = dearer()
    rule, began = history.state.created.billing, history.state.created_at
    told = [
        ((charge.since - began).total_seconds(), (charge.until - began).total_seconds(), str(charge.usd_per_hour))
        for launch in history.state.launches.values()
        for charge in charges(launch, rule, history.now)
    ]
    assert told == [(100, 400, "0.30"), (400, 590, "0.60"), (690, 1190, "3.00")]


def test_an_instance_that_costs_nothing_has_no_price() -> None:
    history = History()
    forgiven = history.launch()
    history.after(10).record(forgiven)
    history.after(30).gone(forgiven)
    rule, launches = history.state.created.billing, history.state.launches
    assert charges(launches[forgiven], rule, history.now) == []
    assert charges(history.state.launches[forgiven], rule, history.state.created_at) == []
    asked = history.launch()
    assert charges(history.state.launches[asked], rule, history.now) == []


def test_each_bar_is_the_price_in_effect_at_its_moment() -> None:
    history = dearer()
    # 1190 s in twelve: spot from 100 s to 590 s, at 0.60 from 400 s on; on-demand from 690 s
    told = ["-" if each is None else str(each) for each in hourly_prices(history.state, history.now, width=12)]
    assert told == ["-", *["0.30"] * 3, "0.60", "-", *["3.00"] * 6]


def test_an_instance_that_was_gone_before_anybody_recorded_it_is_in_it() -> None:
    history = History()
    launch = history.launch(price="0.30")
    price = PriceSegment(since=history.now, usd_per_hour=Decimal("0.30"))
    history.after(100).write(gone(launch, history.now, billed_from=price.since, prices=(price,)))
    assert hourly_prices(history.state, history.now, width=2) == [Decimal("0.30")] * 2


def test_the_line_reaches_from_the_least_to_the_most_and_says_both() -> None:
    line = sparkline([None, Decimal("0.30"), Decimal("0.60"), Decimal("3.00")])
    assert line == f" {BARS[0]}{BARS[0]}{BARS[-1]} $0.30 to $3.00/h"
    assert sparkline([Decimal(1), Decimal(1)]) == f"{BARS[0] * 2} $1/h"
    assert sparkline([None]) == sparkline([]) == ""


@pytest.mark.exhaustive
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_runs(skewed=True))
def test_any_run_has_a_course(history: History) -> None:
    assert len(hourly_prices(history.state, history.now)) == WIDTH
    sparkline(hourly_prices(history.state, history.now))


def test_the_launch_view_and_the_watched_status_show_it() -> None:
    history = dearer()
    clock = ManualClock(history.now)
    view = LiveView(_Ledger(history), clock, spec(), "demo")  # type: ignore[arg-type]
    console = Console(file=io.StringIO(), width=120)
    console.print(view.render(Tick(state=history.state)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "$0.30 to $3.00/h" in shown
    course = [None if each is None else str(each) for each in hourly_prices(history.state, history.now)]
    rows = [{"run": "demo", "next": "trains on", "prices_usd_per_hour": course}, {"run": "over", "next": None}]
    assert [line.split()[0] for line in prices(rows)] == ["demo"]
    assert prices(rows)[0] == f"demo {sparkline(hourly_prices(history.state, history.now))}"


class _Ledger:
    """A ledger of which only the entries are looked at."""

    def __init__(self, history: History) -> None:
        self.entries = history.entries
