"""Runs for pages to show: one with all there is, and one whose names try to be more than names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from msgspec.structs import replace

from spotrun.account.summary import summarise
from spotrun.forecast.page import forecast_page
from spotrun.forecast.plan import plan
from spotrun.report.html.comparison import comparison_page
from spotrun.report.html.page import page
from spotrun.run import events as ev
from spotrun.run.events import Cause
from tests.support.decisions import spec
from tests.support.histories import ON_DEMAND, SPOT, History, intended, offering

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\x00\u202e\u200f</title>--><img src=//evil.example/x onerror=a>"


def stormy(**created: object) -> History:
    """Three epochs; a notice and a loss after each but the last, which is trained on demand."""
    history = History(**created)
    launch = history.running()
    for epoch in range(3):
        history.step += 100
        history.after(900).epoch(epoch)
        history.after(5).commit(taken_s_ago=5, stall_s=0.5)
        if epoch < 2:
            history.notice()
            history.after(60).gone(launch, ended_at=history.now - timedelta(seconds=9))
            launch = history.after(20).running(ON_DEMAND, "3.6") if epoch else history.after(20).running()
    history.completed(history.commit(final=True))
    return history


def hostile() -> History:
    history = History(name=HOSTILE)
    launch = history.launch()
    history.close(launch)
    history.write(
        intended(replace(offering(price="1", zone=HOSTILE), instance_type=HOSTILE), history.now, "2", reason=HOSTILE)
    )
    launch = history.state.next_number - 1
    history.after(5).record(launch)
    history.after(5).start(launch)
    history.resume()
    history.after(5).training()
    history.step = 10
    history.write(
        ev.EpochCompleted(attempt=history.attempt, epoch=0, step=10, ended_at=history.now, metrics={HOSTILE: 0.5})
    )
    history.commit()
    history.write(ev.AttemptEnded(attempt=history.attempt, cause=Cause.USER_ERROR, last_step=10, detail=HOSTILE))
    return history


def learning(metric: str = "val_loss", **created: object) -> History:
    """Three epochs with a metric, the first of them after an interruption."""
    history = History(**created)
    launch = history.running()
    history.after(300).gone(launch)
    history.running()
    for epoch, value in enumerate((0.9, 0.4, 0.3)):
        history.step += 100
        ended = history.after(600).now
        history.write(
            ev.EpochCompleted(
                attempt=history.attempt, epoch=epoch, step=history.step, ended_at=ended, metrics={metric: value}
            )
        )
        history.after(1).commit()
    return history


def report_page(history: History, metric: str | None = None) -> str:
    return page(history.state, history.entries, history.now, metric)


def compared(*histories: History, with_trend: bool = False) -> str:
    return comparison_page([summarise(each.state, each.now) for each in histories], with_trend=with_trend)


def forecast() -> str:
    offerings = (offering(SPOT, "0.90"), offering(ON_DEMAND, "3.00"))
    wanted = spec(policy={"deadline": "8h"}, budget={"max_usd": "6"})
    return forecast_page(plan(wanted, offerings, timedelta(hours=4), timedelta(hours=8), 5), HOSTILE)


SAMPLES: dict[str, Callable[[], str]] = {
    "report": lambda: report_page(stormy()),
    "metric": lambda: report_page(learning(), "val_loss"),
    "hostile": lambda: report_page(learning(HOSTILE, name=HOSTILE), HOSTILE),
    "hostile-places": lambda: report_page(hostile()),
    "forecast": forecast,
    "comparison": lambda: compared(stormy(), learning(), hostile(), with_trend=True),
}
"""Pages by name, each made when it is asked for."""
