"""What the ledger says of the run so far, for the script's own loggers."""

from __future__ import annotations

from datetime import datetime

from spotrun.account.summary import summarise
from spotrun.run.state import RunState
from spotrun.trainer_link import Figures


def figures(state: RunState, now: datetime, attempt: int, epochs_ended: int) -> Figures:
    """
    As of `now`. `epochs_ended` counts epochs whose last step is done, durable or not: when a training resumes, what
    the script's loggers show is rolled back to the checkpoint, and these figures with it.
    """
    total = summarise(state, now).total
    return Figures(
        cost_usd=float(total.cost_usd),
        usd_per_epoch=float(total.cost_usd / epochs_ended) if epochs_ended else None,
        lost_s=total.downtime.total_seconds(),
        attempt=list(state.attempts).index(attempt) + 1,
        epochs=epochs_ended,
    )
