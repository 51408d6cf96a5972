"""Checks a run against a condition: `--fail-if`, or `report.fail_if` of a job (`spotrun.spec.condition`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

from spotrun.account.summary import RunSummary
from spotrun.errors import LimitExceeded, SpecInvalid
from spotrun.spec import condition
from spotrun.spec.condition import Condition
from spotrun.units import Unreadable


def figures(summary: RunSummary) -> dict[str, Decimal | None]:
    """The value of each figure that a condition may name; None if this run does not have it (yet)."""
    return {name: figure(summary) for name, figure in FIGURES.items()}


def _seconds(duration: timedelta) -> Decimal:
    return Decimal(str(duration.total_seconds()))


def _share(share: float | None) -> Decimal | None:
    return None if share is None else Decimal(str(share))


FIGURES: dict[str, Callable[[RunSummary], Decimal | None]] = {
    "cost_usd": lambda run: run.total.cost_usd,
    "spot_usd": lambda run: run.total.spot_usd,
    "on_demand_usd": lambda run: run.total.on_demand_usd,
    "storage_usd": lambda run: run.total.storage_usd,
    "counterfactual_usd": lambda run: run.total.counterfactual_usd,
    "usd_per_epoch": lambda run: run.usd_per_epoch,
    "usd_per_productive_hour": lambda run: run.total.usd_per_productive_hour,
    "savings": lambda run: _share(run.total.savings),
    "goodput": lambda run: _share(run.total.goodput),
    "epochs": lambda run: Decimal(len(run.epochs)),
    "interruptions": lambda run: Decimal(run.total.interruptions),
    "steps_redone": lambda run: Decimal(run.total.steps_redone),
    "wall_s": lambda run: _seconds(run.total.wall),
    "productive_s": lambda run: _seconds(run.total.productive),
    "downtime_s": lambda run: _seconds(run.total.downtime),
    "paid_s": lambda run: _seconds(run.total.paid),
}


def check(condition: Condition, summary: RunSummary) -> None:
    """
    Raises:
        LimitExceeded: the condition holds.
    """
    found = figures(summary)
    if met := condition.met_by(found):
        raise LimitExceeded(f"{summary.run}: {'; '.join(each.message(found) for each in met)}")


def parse(text: str) -> Condition:
    """
    The condition of the flag `--fail-if`.

    Raises:
        SpecInvalid: the message names the place in the text.
    """
    try:
        return condition.parse(text)
    except Unreadable as error:
        raise SpecInvalid(f"--fail-if: {error.message}", hint=error.suggestion) from error
