"""Formats a run's budget: how much is spent, and when the run will pass the limit."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from spotrun.account.spending import BudgetForecast, forecast_spending
from spotrun.account.summary import RunSummary
from spotrun.clock import zone
from spotrun.report.tables import dollars
from spotrun.run.state import RunState
from spotrun.units import plain_usd


def budget_forecast(
    state: RunState, summary: RunSummary, now: datetime, epochs_total: int | None = None
) -> BudgetForecast | None:
    """Return the forecast for a run's budget; None for a run without a budget."""
    budget_usd = state.created.budget_usd
    return None if budget_usd is None else forecast_spending(summary, budget_usd, now, epochs_total)


def budget_line(found: BudgetForecast) -> str:
    """
    Describe the budget in one line: `$12.30 of $40: passes it in epoch 37 at 11-22 02:10 UTC, and needs $51.20`.
    Unknown parts are left out: without any forecast, return only `$12.30 of $40`.
    """
    spent = dollars(found.spent_usd) if found.spent_usd else "$0"
    clock = f" {zone(found.time_scale)}"
    line = f"{spent} of ${plain_usd(found.budget_usd)}" + passing(found.passes_at, found.epoch, "it", clock)
    if found.needs_usd is None:
        return line
    return f"{line}{': ' if found.passes_at is None else ', and '}needs {dollars(found.needs_usd)}"


def passing(at: datetime | None, epoch: int | None, what: str, clock: str = "") -> str:
    """
    Return a text that says when the run will exceed its budget, such as `: passes it in epoch 37 at 11-22 02:10 UTC`;
    "" if `at` is None. In this example, `what`, the word for the budget, is "it", and `clock`, the text after the time,
    is " UTC".
    """
    if at is None:
        return ""
    where = "" if epoch is None else f" in epoch {epoch + 1}"
    return f": passes {what}{where} at {at:%m-%d %H:%M}{clock}"


def share(spent_usd: Decimal, budget_usd: Decimal) -> str:
    return f"{spent_usd / budget_usd:.0%}"
