"""Dollars, downtime and the attempt: what the agent sends of them, and how a trainer takes it."""

from __future__ import annotations

from spotrun.account.summary import summarise
from spotrun.agent.trainees.training import figures
from spotrun.trainer_link import Figures
from spotrun.training.figures import FiguresBox
from tests.support.histories import History

NAMES = {"cost_usd", "usd_per_epoch", "lost_s", "attempt"}


def test_the_agent_tells_what_the_account_says() -> None:
    history = History()
    launch = history.running()
    history.step = 50
    history.after(700).epoch(0)
    history.commit()
    first = figures(history.state, history.now, history.attempt, 1)
    total = summarise(history.state, history.now).total
    assert first.cost_usd == first.usd_per_epoch == float(total.cost_usd)
    assert (first.lost_s, first.attempt, first.epochs) == (total.downtime.total_seconds(), 1, 1)
    history.after(10).gone(launch)
    history.running()
    second = figures(history.state, history.now, history.attempt, 0)
    assert (second.attempt, second.usd_per_epoch) == (2, None)
    assert second.metrics().keys() == NAMES - {"usd_per_epoch"}
    assert second.cost_usd > first.cost_usd
    assert second.lost_s > first.lost_s


def test_each_figure_is_taken_once_and_the_end_waits_only_for_announced_epochs() -> None:
    box = FiguresBox()
    box.wait(3, timeout_s=60)  # nobody ever told anything: returns at once
    assert box.take() is None
    told = [Figures(cost_usd=n, usd_per_epoch=None, lost_s=0, attempt=1, epochs=n) for n in (1, 2)]
    for each in told:
        box.put(each)
    box.wait(2, timeout_s=60)
    assert box.take() == told[1]
    assert box.take() is None
