"""Collects measurements from a job's earlier runs: how long training and starting instances took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from decimal import Decimal
from statistics import fmean

import msgspec

from spotrun.account.summary import summarise
from spotrun.policy import assumptions
from spotrun.policy.changeovers import measured_starts
from spotrun.run.events import CheckpointCommitted
from spotrun.run.state import RunState


class CompletedRun(msgspec.Struct, frozen=True):
    """A completed run: what it really cost and how long it took, on the market that it had."""

    run: str
    wall: timedelta
    cost_usd: Decimal
    interruptions: int


class RunMeasurements(msgspec.Struct, frozen=True):
    """
    Measurements of earlier runs.

    `work` is the productive time of the newest completed run, `epochs` is its number of epochs, and `completed` is that
    run itself; all three are None if no run has completed. `changeovers_s` are the durations of all changeovers in all
    runs. If an instance only unpacked the setup cache, its changeover is converted to that of an instance that runs all
    of `setup`. `boots_s` are the seconds of each start before billing began. `setups_s` are the seconds of each full
    setup that was then packed into the cache. `unpacks_s` are the seconds that unpacking the cache took.

    `checkpoint_bytes` is the size of the newest checkpoint, 0 before the first. `work_doubt` is the share by which
    `work` may be wrong. `by_bench` is True if `spotrun bench` measured the changeovers.
    """

    work: timedelta | None = None
    epochs: int | None = None
    changeovers_s: tuple[float, ...] = ()
    boots_s: tuple[float, ...] = ()
    setups_s: tuple[float, ...] = ()
    unpacks_s: tuple[float, ...] = ()
    checkpoint_bytes: int = 0
    work_doubt: float = assumptions.WORK_DOUBT_MIN
    by_bench: bool = False
    completed: CompletedRun | None = None

    @property
    def changeover_s(self) -> float | None:
        """The mean duration of a changeover, in seconds."""
        return fmean(self.changeovers_s) if self.changeovers_s else None

    @property
    def boot_s(self) -> float | None:
        """The mean duration of a boot, in seconds."""
        return fmean(self.boots_s) if self.boots_s else None

    @property
    def later_start(self) -> float:
        """
        The duration of a changeover that only unpacks the setup cache, as a share of one that runs all of `setup`.
        """
        if not self.setups_s or not self.changeovers_s:
            return 1.0
        whole_s = fmean(self.setups_s)
        unpack_s = fmean(self.unpacks_s) if self.unpacks_s else assumptions.UNPACK_SHARE * whole_s
        return 1 - max(0.0, whole_s - unpack_s) / fmean(self.changeovers_s)


def measured(states: Iterable[RunState]) -> RunMeasurements:
    """Collect the measurements from one job's runs, given with the newest first."""
    known = list(states)
    setups_s = tuple(seconds for state in known for seconds in _setups(state, "run"))
    whole_s = fmean(setups_s) if setups_s else None
    found = RunMeasurements(
        changeovers_s=tuple(seconds for state in known for seconds in _whole_starts(state, whole_s)),
        boots_s=tuple(seconds for state in known for seconds in _boots(state)),
        setups_s=setups_s,
        unpacks_s=tuple(seconds for state in known for seconds in _setups(state, "unpacked")),
        checkpoint_bytes=next((_size_bytes(state.commits[-1].event) for state in known if state.commits), 0),
    )
    for state in known:
        if state.terminal is not None and state.terminal.outcome == "completed":
            summary = summarise(state, state.terminal.at)
            total, epochs = summary.total, len(summary.epochs)
            run = CompletedRun(summary.run, total.wall, total.cost_usd, total.interruptions)
            return msgspec.structs.replace(found, work=total.productive, epochs=epochs, completed=run)
    return found


def _size_bytes(event: CheckpointCommitted) -> int:
    return event.size_bytes if event.has_image or event.files is None else event.files.size_bytes


def _setups(state: RunState, how: str) -> Iterator[float]:
    """
    Yield the seconds that `setup` took on each instance that `how` selects: "run" for those where it ran in full and
    was then packed into the cache, "unpacked" for those that only unpacked the cache.
    """
    for attempt in state.attempts.values():
        if attempt.setup is not None and attempt.setup.how == how and attempt.setup.packed_bytes:
            yield attempt.setup.seconds


def _whole_starts(state: RunState, setup_s: float | None) -> Iterator[float]:
    """
    Yield the seconds of each changeover with a full run of `setup`. For an instance that only unpacked the setup cache,
    replace the unpacking time with `setup_s`, the time of the full setup. If `setup_s` is None, leave the unpacking
    time as it is.
    """
    for number, seconds in measured_starts(state).items():
        setup = state.attempts[number].setup
        if setup is not None and setup.how == "unpacked" and setup_s is not None:
            yield seconds - setup.seconds + setup_s
        else:
            yield seconds


def _boots(state: RunState) -> Iterator[float]:
    for launch in state.launches.values():
        if launch.recorded is not None:
            yield (launch.recorded.billed_from - launch.intended_at).total_seconds()
