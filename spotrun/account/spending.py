"""When a run will pass its budget, at the pace of its costs so far. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from spotrun.account.summary import Account, RunSummary
from spotrun.run.billing import ZERO

EPOCHS_LOOKED_AT = 5
"""The newest epochs say most about the next ones: prices and capacity change."""
LONGEST = timedelta(days=365)
"""A run that would take longer than this to pass its budget will not."""


class BudgetForecast(msgspec.Struct, frozen=True):
    """
    What is spent of a budget and where that leads.

    `passes_at` is when the rest will be spent at the pace so far, in run time, and `epoch` (from 0) the one that will
    be under way then. Both are None if that cannot be foreseen, or if it would be after the training's end; only
    `epoch` is None before the first completed epoch. The run never passes its budget: it commits and ends before (see
    `policy.money`).
    """

    budget_usd: Decimal
    spent_usd: Decimal
    passes_at: datetime | None = None
    epoch: int | None = None

    @property
    def left_usd(self) -> Decimal:
        return max(ZERO, self.budget_usd - self.spent_usd)


def forecast_spending(
    summary: RunSummary, budget_usd: Decimal, now: datetime, epochs_total: int | None = None
) -> BudgetForecast:
    """`epochs_total` is how many epochs the whole training has; None if it does not say."""
    spent = BudgetForecast(budget_usd, summary.total.cost_usd)
    newest = summary.epochs[-EPOCHS_LOOKED_AT:] or (summary.total,)
    usd = sum((account.cost_usd for account in newest), ZERO)
    wall = sum((account.wall for account in newest), timedelta())
    if not usd or not wall or summary.ended_at is not None:
        return spent
    left = wall.total_seconds() * float(spent.left_usd / usd)
    if left > LONGEST.total_seconds():
        return spent
    epoch = _epoch(summary.epochs, summary.rest.cost_usd + spent.left_usd, usd / len(newest))
    if epoch is not None and epochs_total is not None and epoch >= epochs_total:
        return spent
    return BudgetForecast(budget_usd, spent.spent_usd, now + timedelta(seconds=left), epoch)


def _epoch(completed: tuple[Account, ...], from_its_start_usd: Decimal, usd_per_epoch: Decimal) -> int | None:
    """The epoch in which these dollars are spent, counted from the end of the newest completed one."""
    if not completed or completed[-1].epoch is None:
        return None
    return completed[-1].epoch + 1 + int(from_its_start_usd / usd_per_epoch)
