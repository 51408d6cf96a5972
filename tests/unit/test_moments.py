"""A moment of a run is said to be UTC only where the run's clock is the wall's."""

from __future__ import annotations

import io
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from spotrun.account.summary import summarise
from spotrun.notify.news import news_of
from spotrun.report import machine_readable, terminal
from spotrun.report.budget import budget_forecast, budget_line
from spotrun.report.describe import describe
from spotrun.report.live import LiveView
from spotrun.report.next_decision import next_decision
from spotrun.report.why import decisions
from spotrun.run.events import BudgetNearlySpent
from spotrun.runner.tick import Tick
from tests.support.decisions import spec
from tests.support.histories import START, History
from tests.support.manual_clock import ManualClock
from tests.support.report_samples import report_page


def eventful(time_scale: float) -> History:
    """A run with a deadline and a budget, an interruption, and standbys that fail."""
    history = History(time_scale=time_scale, budget_usd=Decimal(400), deadline_at=START + timedelta(hours=9))
    launch = history.running()
    for epoch in range(2):
        history.step += 60
        history.after(600).epoch(epoch)
        history.commit()
    history.write(BudgetNearlySpent(spent_usd=Decimal(32), passes_at=START + timedelta(hours=2), epoch=3))
    history.after(100).notice()
    history.after(15).drained(history.commit(final=True))
    history.after(100).gone(launch)
    history.running()
    history.failed_standbys(3)
    return history


def printed(shown: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def told_of(history: History) -> dict[str, str]:
    """What is said of a run with moments in it, by where."""
    state, now, ledger = history.state, history.now, SimpleNamespace(entries=history.entries)
    clock: Any = ManualClock(now)
    clock.scale = state.created.time_scale
    budget = budget_forecast(state, summarise(state, now), now)
    assert budget is not None
    return {
        "why": "".join(each.sentence for each in decisions(history.entries, spec())),
        "news": "".join(each.sentence for each in news_of(history.entries)),
        "next": next_decision(state, spec(), now),
        "budget": budget_line(budget),
        "launch": printed(LiveView(ledger, clock, spec(), "demo").render(Tick(state=state))),  # type: ignore[arg-type]
        "report": printed(terminal.report(summarise(state, now))),
        "page": report_page(history),
    }


@pytest.mark.parametrize(("time_scale", "clock", "other"), [(1.0, "UTC", "run time"), (30.0, "run time", "UTC")])
def test_moments_name_the_clock_of_the_run(time_scale: float, clock: str, other: str) -> None:
    history = eventful(time_scale)
    told = told_of(history)
    assert [place for place, text in told.items() if clock not in text] == []
    assert [place for place, text in told.items() if other in text] == []
    assert not [entry for entry in history.entries if "UTC" in describe(entry)], "they stand beside other moments"


def test_programs_get_the_wall_clock_or_the_scale() -> None:
    history = eventful(30.0)
    assert [each.at for each in news_of(history.entries)][-1] == START + (history.now - START) / 30
    assert machine_readable.report(summarise(history.state, history.now))["time_scale"] == 30
