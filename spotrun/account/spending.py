"""Forecasts, from a run's completed epochs, when its budget will be used up and what budget it needs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from spotrun.account.summary import Account, RunSummary
from spotrun.account.timeline import Activity
from spotrun.run.billing import ZERO, to_nano
from spotrun.run.bounds import NUMBER_MAX

EPOCHS_LOOKED_AT = 5
"""Number of newest epochs that the forecast uses. It ignores older ones, because prices and capacity change."""
LONGEST = timedelta(days=365)
"""The furthest time ahead that is forecast: if the budget lasts longer, no time is given."""
_START = (Activity.WAIT, Activity.BOOT, Activity.SETUP, Activity.RESTORE)


class BudgetForecast(msgspec.Struct, frozen=True):
    """
    A forecast of how a run spends its budget. No forecast is made before the first epoch is completed.

    `passes_at` is the time, in run time, at which the budget will be used up if the run continues to spend as fast as
    in its newest epochs. `epoch` (counted from 0) is the epoch that will be in progress then. Both are None if that
    time is unknown, or if the training will end earlier. `needs_usd` is the expected cost of the whole training; None
    if the budget covers it, or if the number of epochs is unknown. Whatever the forecast, the run never costs more than
    its budget: before the budget is used up, the run saves a checkpoint and ends (see `policy.money`).
    """

    budget_usd: Decimal
    spent_usd: Decimal
    passes_at: datetime | None = None
    epoch: int | None = None
    needs_usd: Decimal | None = None
    time_scale: float = 1

    @property
    def left_usd(self) -> Decimal:
        return max(ZERO, self.budget_usd - self.spent_usd)


def forecast_spending(
    summary: RunSummary, budget_usd: Decimal, now: datetime, epochs_total: int | None = None
) -> BudgetForecast:
    """Forecast how the run spends its budget. `epochs_total` is None if it is unknown."""
    spent = BudgetForecast(budget_usd, summary.total.cost_usd, time_scale=summary.time_scale)
    usd, wall = _pace(summary.epochs)
    if not usd or not wall or summary.ended_at is not None:
        return spent
    newest = summary.epochs[-1].epoch
    assert newest is not None
    needs_usd = None
    if epochs_total is not None:
        completed_usd = summary.total.cost_usd - summary.rest.cost_usd
        needs_usd = to_nano(completed_usd + usd * max(0, epochs_total - newest - 1))
        if needs_usd <= budget_usd:
            return spent
    left = wall.total_seconds() * float(spent.left_usd / usd)
    epoch = newest + 1 + int((summary.rest.cost_usd + spent.left_usd) / usd)
    if left > LONGEST.total_seconds() or epoch > NUMBER_MAX:  # an agent may report any epoch number
        return msgspec.structs.replace(spent, needs_usd=needs_usd)
    passes_at = now + timedelta(seconds=left)
    return msgspec.structs.replace(spent, passes_at=passes_at, epoch=epoch, needs_usd=needs_usd)


def _pace(epochs: Sequence[Account]) -> tuple[Decimal, timedelta]:
    """
    Return the expected cost in dollars and the expected wall time of a future epoch: the means over the newest epochs.
    Both are 0 if no epoch is completed.

    The mean leaves out the first epoch, because its cost includes the run's start, which later epochs do not repeat. If
    only the first epoch is completed, the function uses that epoch's cost without the cost of the start.
    """
    if len(epochs) == 1:
        first = epochs[0]
        start = sum((first.times[kind] for kind in _START), timedelta())
        share = Decimal(1) if not first.wall else Decimal((first.wall - start) / first.wall)
        return first.cost_usd * share, first.wall - start
    newest = epochs[1:][-EPOCHS_LOOKED_AT:]
    if not newest:
        return ZERO, timedelta()
    usd = sum((account.cost_usd for account in newest), ZERO) / len(newest)
    return usd, sum((account.wall for account in newest), timedelta()) / len(newest)
