"""What earlier runs of a job tell about the next one: how long its training takes, and how long its starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from statistics import fmean

import msgspec

from spotrun.accounting import summarise
from spotrun.policy.situation import measured_changeovers
from spotrun.state import RunState


class Measured(msgspec.Struct, frozen=True):
    """
    `work` is the training alone, with its `epochs`, as the newest completed run had it; None where no run tells.
    `changeovers_s` is what each start of all runs took, `boots_s` the part of each that was not billed yet.
    `checkpoint_bytes` is the size of the newest checkpoint, 0 where there is none.
    """

    work: timedelta | None = None
    epochs: int | None = None
    changeovers_s: tuple[float, ...] = ()
    boots_s: tuple[float, ...] = ()
    checkpoint_bytes: int = 0

    @property
    def changeover_s(self) -> float | None:
        """The mean."""
        return fmean(self.changeovers_s) if self.changeovers_s else None

    @property
    def boot_s(self) -> float | None:
        """The mean."""
        return fmean(self.boots_s) if self.boots_s else None


def measured(states: Iterable[RunState]) -> Measured:
    """From the runs of one job, newest first."""
    known = list(states)
    starts = tuple(seconds for state in known for seconds in measured_changeovers(state))
    boots = tuple(seconds for state in known for seconds in _boots(state))
    size = next((state.commits[-1].event.size_bytes for state in known if state.commits), 0)
    for state in known:
        if state.terminal is not None and state.terminal.outcome == "completed":
            summary = summarise(state, state.terminal.at)
            return Measured(summary.total.productive, len(summary.epochs), starts, boots, size)
    return Measured(changeovers_s=starts, boots_s=boots, checkpoint_bytes=size)


def _boots(state: RunState) -> Iterator[float]:
    for launch in state.launches.values():
        if launch.recorded is not None:
            yield (launch.recorded.billed_from - launch.intended_at).total_seconds()
