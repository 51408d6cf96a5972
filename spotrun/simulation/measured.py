"""What earlier runs of a job tell about the next one: how long its training takes, and how long its starts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from statistics import fmean

import msgspec

from spotrun.accounting import summarise
from spotrun.policy.situation import measured_changeovers
from spotrun.state import RunState


class Measured(msgspec.Struct, frozen=True):
    """
    `work` is the training alone, with its `epochs`, as the newest completed run had it; `changeover` the mean of
    `starts` starts of all runs. None where no run tells.
    """

    work: timedelta | None = None
    epochs: int | None = None
    changeover: timedelta | None = None
    starts: int = 0


def measured(states: Iterable[RunState]) -> Measured:
    """From the runs of one job, newest first."""
    known = list(states)
    starts = [seconds for state in known for seconds in measured_changeovers(state)]
    changeover = timedelta(seconds=fmean(starts)) if starts else None
    for state in known:
        if state.terminal is not None and state.terminal.outcome == "completed":
            summary = summarise(state, state.terminal.at)
            return Measured(summary.total.productive, len(summary.epochs), changeover, len(starts))
    return Measured(changeover=changeover, starts=len(starts))
