"""Runs of a few events, each made for what it shows."""

from __future__ import annotations

from decimal import Decimal

from spotrun.instance import EndedBy
from tests.support.decisions import spec
from tests.support.histories import History


def bare(hours: float = 2.0, **created: object) -> History:
    """A run that was completed without a checkpoint."""
    history = History(spec=spec().to_dict(), **created)
    launch = history.running()
    history.after(hours * 3600).completed(None)
    history.gone(launch, EndedBy.ITSELF)
    return history


BUDGET = Decimal(40)


def trained(epochs: int, hours_each: float = 2 / 3, **created: object) -> History:
    """Epochs that take so long and are durable at once, on an instance at $1.50 an hour."""
    history = History(**{"budget_usd": BUDGET, **created})
    launch = history.launch(price="1.5", on_demand="1.5")
    history.record(launch)
    history.start(launch)
    history.resume()
    history.training()
    for epoch in range(epochs):
        history.step += 100
        history.after(hours_each * 3600).epoch(epoch)
        history.commit(size_bytes=1)
    return history
