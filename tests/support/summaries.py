"""Two runs as reports show them: one through a storm, one calm."""

from __future__ import annotations

from datetime import timedelta

from spotrun.account.summary import RunSummary, summarise
from spotrun.instance import EndedBy
from tests.support.histories import ON_DEMAND, SPOT, History


def stormy(**created: object) -> RunSummary:
    """Three epochs, two interruptions, the second answered by on-demand."""
    history = History(**created)
    launch = history.after(3).running()
    for epoch in range(3):
        history.step += 50
        history.after(700).commit(taken_s_ago=12, stall_s=0.4)
        if epoch:
            history.after(200).gone(launch, ended_at=history.now - timedelta(seconds=9), last_step=history.step + 13)
            launch = history.after(14).running(*((ON_DEMAND, "3.6") if epoch == 2 else (SPOT, "0.36")))
        history.step += 50
        history.after(800).epoch(epoch)
        final = history.after(8).commit(taken_s_ago=8, stall_s=0.4, final=epoch == 2)
    history.after(3).completed(final)
    history.after(20).gone(launch, EndedBy.ITSELF)
    return summarise(history.state, history.now)


def calm_on_demand() -> RunSummary:
    history = History(name="calm", uid="9876543210")
    history.running(ON_DEMAND, "3.6")
    for epoch in range(3):
        history.step += 100
        history.after(1500).epoch(epoch)
        final = history.commit(final=epoch == 2)
    history.completed(final)
    return summarise(history.state, history.now)
