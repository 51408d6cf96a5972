"""
Checks a run against the condition in `--fail-if`, or in `report.fail_if` of the job (`spotrun.spec.condition`).
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from spotrun.account.summary import RunSummary
from spotrun.errors import LimitExceeded, SpecInvalid
from spotrun.spec import condition
from spotrun.spec.condition import FIGURE_NAMES, Condition
from spotrun.units import Unreadable


def figures(summary: RunSummary) -> dict[str, Decimal | None]:
    """Return the value of each figure that a condition can name; None for a figure that this run does not have yet."""
    of_run = {"epochs": len(summary.epochs), "usd_per_epoch": summary.usd_per_epoch}
    of_total = {name: getattr(summary.total, name.removesuffix("_s")) for name in FIGURE_NAMES if name not in of_run}
    return {name: _number(figure) for name, figure in (of_run | of_total).items()}


def _number(figure: Decimal | timedelta | float | None) -> Decimal | None:
    """Convert a figure to a number. A time becomes seconds."""
    if figure is None or isinstance(figure, Decimal):
        return figure
    return Decimal(str(figure.total_seconds() if isinstance(figure, timedelta) else figure))


def check(condition: Condition, summary: RunSummary) -> None:
    """
    Check that the condition does not hold for the run.

    Raises:
        LimitExceeded: the condition holds.
    """
    found = figures(summary)
    if met := condition.met_by(found):
        raise LimitExceeded(f"{summary.run}: {'; '.join(each.message(found) for each in met)}")


def parse(text: str) -> Condition:
    """
    Return the condition that the flag `--fail-if` contains.

    Raises:
        SpecInvalid: the text is not a condition; the message says where in the text the error is.
    """
    try:
        return condition.parse(text)
    except Unreadable as error:
        raise SpecInvalid(f"--fail-if: {error.message}", hint=error.suggestion) from error
