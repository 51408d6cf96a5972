"""
What a run cost, in dollars and in time, per completed epoch (protocol 24 and 26). Pure: no clock, no I/O.

    epochs + unfinished = total            exactly, in dollars (Decimal) and in time (timedelta)

Epoch e owns the interval from the previous epoch's first durable completion to its own; whatever accrues in it, the
overlap of two instances included, is its cost. What follows the last durable epoch is *unfinished*.

Dollars are taken from sums that only grow: each is rounded to nano-dollars once at each boundary and then only
subtracted, so no cent is lost or made between the epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from spotrun.billing import ZERO, to_nano
from spotrun.events import Cause
from spotrun.instance import EndedBy
from spotrun.offering import CapacityType
from spotrun.state import Attempt, Launch, RunState
from spotrun.timeline import DOWNTIME, FOREVER, Kind, Span, account_end, spent, timeline

BYTES_PER_GB = 10**9
HOURS_PER_MONTH = 730
MICROSECONDS_PER_HOUR = 3_600_000_000
_MICROSECOND = timedelta(microseconds=1)
_CHANGEOVER = (Kind.BOOT, Kind.SETUP, Kind.RESTORE)


@dataclass(frozen=True)
class Account:
    """
    One stretch of a run: a completed epoch (counted from 0), or what is unfinished, or the total (`epoch` is None).

    `counterfactual_usd` is what the same productive time would have cost on demand on the same instance type, together
    with one start (the run's first boot, setup and restore, where it falls).
    """

    epoch: int | None
    spot_usd: Decimal
    on_demand_usd: Decimal
    storage_usd: Decimal
    requests_usd: Decimal
    egress_usd: Decimal
    counterfactual_usd: Decimal
    times: Mapping[Kind, timedelta]
    interruptions: int
    steps_redone: int

    @property
    def cost_usd(self) -> Decimal:
        return self.spot_usd + self.on_demand_usd + self.storage_usd + self.requests_usd + self.egress_usd

    @property
    def productive(self) -> timedelta:
        return self.times[Kind.PRODUCTIVE]

    @property
    def downtime(self) -> timedelta:
        return sum((self.times[kind] for kind in DOWNTIME), timedelta(0))

    @property
    def wall(self) -> timedelta:
        """Productive time and downtime; pauses are in neither."""
        return self.productive + self.downtime

    @property
    def savings(self) -> float | None:
        """The share of the on-demand bill that was not paid, 0.7 for 70 %; None where that bill is zero."""
        if not self.counterfactual_usd:
            return None
        return float(1 - self.cost_usd / self.counterfactual_usd)


@dataclass(frozen=True)
class RunSummary:
    """
    What a run cost; a report only renders it. `state` is `running`, `completed`, `stopped` or `failed`; `run` is the
    name of its folder.

    `assumptions` says in a line what the figures rest on.
    """

    run: str
    name: str
    state: str
    started_at: datetime
    ended_at: datetime | None
    epochs: tuple[Account, ...]
    unfinished: Account
    total: Account
    simulated: bool
    assumptions: str

    @property
    def usd_per_epoch(self) -> Decimal | None:
        """All dollars over completed epochs; None before the first."""
        return self.total.cost_usd / len(self.epochs) if self.epochs else None


def summarise(state: RunState, now: datetime) -> RunSummary:
    """The account of a run as of `now`; what is not over yet is billed and timed up to then."""
    created = state.created
    assert created is not None
    assert state.created_at is not None
    spans = timeline(state, now)
    completions = durable_epochs(state)
    horizon = _horizon(state, now)
    books = _Books(state, spans, horizon)
    cuts = [at for _, at in completions]
    bills = [books.until(at) for at in [*cuts, horizon]]
    times = [spent(window) for window in _windows(spans, cuts)]
    names = [*(epoch for epoch, _ in completions), None]
    parts = [bill - before for bill, before in zip(bills, [_NOTHING, *bills[:-1]], strict=True)]
    *epochs, unfinished = [part.account(name, time) for part, name, time in zip(parts, names, times, strict=True)]
    return RunSummary(
        run=f"{created.name}-{created.uid}",
        name=created.name,
        state=outcome(state),
        started_at=state.created_at,
        ended_at=None if state.terminal is None else state.terminal.at,
        epochs=tuple(epochs),
        unfinished=unfinished,
        total=bills[-1].account(None, spent(spans)),
        simulated=created.simulated,
        assumptions=assumptions(state),
    )


def outcome(state: RunState) -> str:
    """`running`, `completed`, `stopped` or `failed`."""
    return "running" if state.terminal is None else state.terminal.outcome


def status_word(state: RunState) -> str:
    """
    What the run is doing now. Before an end: `created`; `waiting` (for capacity, or for a runner to ask for it);
    `starting` (a machine is asked for and has not taken over); `restoring`; `training`; `leaving` (the attempt was told
    to go); `stopping` (somebody asked for an end). After it: `completed`, `stopped` or `failed`.
    """
    if state.terminal is not None:
        return state.terminal.outcome
    if state.stop_requested:
        return "stopping"
    if state.current is not None:
        return _attempt_word(state.current)
    if state.pending_launch is not None:
        return "starting"
    return "waiting" if state.launches else "created"


def _attempt_word(attempt: Attempt) -> str:
    if attempt.leaving:
        return "leaving"
    trainer = attempt.trainers[-1] if attempt.trainers else None
    trains = trainer is not None and trainer.started_at is not None and trainer.exited is None
    return "training" if trains else "restoring"


def durable_epochs(state: RunState) -> tuple[tuple[int, datetime], ...]:
    """
    The completed epochs (from 0) and when each became durable: with the first surviving commit at or past its last
    step, or with the run's completion. In order, and never earlier than the one before.
    """
    commits = [commit for commit in state.commits if not commit.cut_off and not commit.event.suspect]
    completed_at = state.terminal.at if state.terminal is not None and state.terminal.outcome == "completed" else None
    found: list[tuple[int, datetime]] = []
    latest = state.created_at or FOREVER
    index = 0
    for epoch in state.epochs:
        while index < len(commits) and commits[index].event.step < epoch.event.step:
            index += 1
        durable_at = commits[index].at if index < len(commits) else completed_at
        if durable_at is None:
            break
        latest = max(latest, epoch.at, durable_at)
        found.append((epoch.event.epoch, latest))
    return tuple(found)


def interrupted(state: RunState, attempt: Attempt) -> bool:
    """
    The cloud took this attempt's instance: by the record of its end, or, where a standby took over before that end was
    on record, by the notice or by the record that came later.
    """
    if attempt.end is None or attempt.end.cause is not Cause.REPLACED:
        return attempt.end is not None and attempt.end.cause is Cause.INTERRUPTED
    gone = state.launch_of(attempt).gone
    taken = gone is not None and gone.ended_by is EndedBy.CLOUD and gone.ended_at <= attempt.end.known_at
    return attempt.notice is not None or taken


def assumptions(state: RunState) -> str:
    """What the figures rest on, in one line."""
    created = state.created
    assert created is not None
    prices = "prices are SIMULATED, nobody is billed" if created.simulated else "prices as the cloud reported them"
    unpriced = sum(1 for launch in state.launches.values() if _unpriced(launch))
    parts = [
        prices,
        f"instances: {created.billing.source}",
        f"storage and requests: {created.storage.source}",
        "what is stored: the checkpoints, from commit to removal or the run's end",
        "egress: none (same region)",
        "all on demand: the productive time and one start, at the on-demand price of the same type",
    ]
    if any(launch.recorded is not None and launch.gone is None for launch in state.launches.values()):
        parts.append("instances that still run are billed up to now at the price last recorded")
    if unpriced:
        parts.append(f"UNKNOWN PRICE of {unpriced} instance(s), counted as 0: the true cost is higher")
    if state.pauses:
        parts.append("while it was stopped, the run's clock stood still")
    if created.time_scale != 1:
        parts.append(f"times are run time, {created.time_scale:g} x as fast as the wall clock")
    return "; ".join(parts)


def _unpriced(launch: Launch) -> bool:
    record = launch.gone or launch.recorded
    return record is not None and record.billed_from is not None and not record.prices


# -- dollars and counts as sums that only grow -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bill:
    """What has accrued by some moment, or between two."""

    spot_usd: Decimal
    on_demand_usd: Decimal
    storage_usd: Decimal
    requests_usd: Decimal
    counterfactual_usd: Decimal
    interruptions: int
    steps_redone: int

    def __sub__(self, other: _Bill) -> _Bill:
        return _Bill(
            spot_usd=self.spot_usd - other.spot_usd,
            on_demand_usd=self.on_demand_usd - other.on_demand_usd,
            storage_usd=self.storage_usd - other.storage_usd,
            requests_usd=self.requests_usd - other.requests_usd,
            counterfactual_usd=self.counterfactual_usd - other.counterfactual_usd,
            interruptions=self.interruptions - other.interruptions,
            steps_redone=self.steps_redone - other.steps_redone,
        )

    def account(self, epoch: int | None, times: Mapping[Kind, timedelta]) -> Account:
        return Account(
            epoch=epoch,
            spot_usd=self.spot_usd,
            on_demand_usd=self.on_demand_usd,
            storage_usd=self.storage_usd,
            requests_usd=self.requests_usd,
            egress_usd=ZERO,
            counterfactual_usd=self.counterfactual_usd,
            times=times,
            interruptions=self.interruptions,
            steps_redone=self.steps_redone,
        )


_NOTHING = _Bill(ZERO, ZERO, ZERO, ZERO, ZERO, 0, 0)


class _Tally:
    """Counts things that happened at moments."""

    def __init__(self, happened: Iterable[tuple[datetime, int]]) -> None:
        self._moments: list[datetime] = []
        self._counts = [0]
        for moment, count in sorted(happened):
            self._moments.append(moment)
            self._counts.append(self._counts[-1] + count)

    def until(self, moment: datetime) -> int:
        """How many up to and including `moment`."""
        return self._counts[bisect_right(self._moments, moment)]


class _Integral:
    """The integral over time of something that is there from one moment to another: bytes kept, dollars an hour."""

    def __init__(self, stretches: Iterable[tuple[datetime, datetime, Decimal]]) -> None:
        changes: list[tuple[datetime, Decimal]] = []
        for start, end, amount in stretches:
            if start < end:
                changes += [(start, amount), (end, -amount)]
        changes.sort()
        self._moments: list[datetime] = []
        self._sums: list[Decimal] = []
        self._amounts: list[Decimal] = []
        total = amount_now = ZERO
        for index, (moment, change) in enumerate(changes):
            if index:
                total += amount_now * _microseconds(moment - changes[index - 1][0])
            amount_now += change
            self._moments.append(moment)
            self._sums.append(total)
            self._amounts.append(amount_now)

    def until(self, moment: datetime) -> Decimal:
        """Amount times microseconds, up to `moment`."""
        index = bisect_right(self._moments, moment) - 1
        if index < 0:
            return ZERO
        return self._sums[index] + self._amounts[index] * _microseconds(moment - self._moments[index])


def _microseconds(duration: timedelta) -> int:
    return duration // _MICROSECOND


class _Books:
    """Everything that accrues, ready to be asked how much it is by any moment."""

    def __init__(self, state: RunState, spans: tuple[Span, ...], horizon: datetime) -> None:
        assert state.created is not None
        rule = state.created.billing
        self._storage_prices = state.created.storage
        self._meters = [
            (launch.intent.offering.capacity_type, launch.meter(rule)) for launch in state.launches.values()
        ]
        kept_until = account_end(state, horizon)
        self._stored = _Integral(
            (commit.at, min(kept_until, commit.retired_at or kept_until), Decimal(commit.event.size_bytes))
            for commit in state.commits
        )
        # A commit puts its objects and one manifest, and reads the objects back; every ledger entry is one put.
        self._puts = _Tally(
            [(commit.at, commit.event.objects + 1) for commit in state.commits]
            + [(written_at, 1) for written_at in state.entry_times]
        )
        self._gets = _Tally([*((commit.at, commit.event.objects) for commit in state.commits), *state.restores])
        self._on_demand_bill = _Integral(_counterfactual(state, spans))
        self._interruptions = _Tally(
            (attempt.end.known_at, 1)
            for attempt in state.attempts.values()
            if attempt.end is not None and interrupted(state, attempt)
        )
        self._steps_redone = _Tally(state.steps_redone)

    def until(self, moment: datetime) -> _Bill:
        return _Bill(
            spot_usd=self._instances(CapacityType.SPOT, moment),
            on_demand_usd=self._instances(CapacityType.ON_DEMAND, moment),
            storage_usd=self._storage(moment),
            requests_usd=self._requests(moment),
            counterfactual_usd=to_nano(self._on_demand_bill.until(moment) / MICROSECONDS_PER_HOUR),
            interruptions=self._interruptions.until(moment),
            steps_redone=self._steps_redone.until(moment),
        )

    def _instances(self, capacity_type: CapacityType, moment: datetime) -> Decimal:
        meters = (meter for capacity, meter in self._meters if capacity is capacity_type)
        return sum((meter.cost_until(moment) for meter in meters), ZERO)

    def _storage(self, moment: datetime) -> Decimal:
        gb_months = self._stored.until(moment) / (BYTES_PER_GB * HOURS_PER_MONTH * MICROSECONDS_PER_HOUR)
        return to_nano(self._storage_prices.usd_per_gb_month * gb_months)

    def _requests(self, moment: datetime) -> Decimal:
        prices = self._storage_prices
        puts, gets = self._puts.until(moment), self._gets.until(moment)
        return to_nano((prices.usd_per_1000_puts * puts + prices.usd_per_1000_gets * gets) / 1000)


def _counterfactual(state: RunState, spans: tuple[Span, ...]) -> Iterable[tuple[datetime, datetime, Decimal]]:
    """When an on-demand machine in this run's place would have been billed, and at which hourly price."""
    first = next((span for span in spans if span.kind is Kind.PRODUCTIVE), None)
    for span in spans:
        if span.attempt is None:
            continue
        starting = (
            first is not None
            and span.attempt == first.attempt
            and span.kind in _CHANGEOVER
            and span.start < first.start
        )
        if span.kind is Kind.PRODUCTIVE or starting:
            launch = state.launch_of(state.attempts[span.attempt])
            yield span.start, span.end, launch.intent.on_demand_usd_per_hour


def _horizon(state: RunState, now: datetime) -> datetime:
    """A moment by which all that is on record had happened, whatever the clocks said; never before now."""
    assert state.created is not None
    ended = [launch.gone.ended_at for launch in state.launches.values() if launch.gone is not None]
    return max([now, *state.entry_times, *ended])


def _windows(spans: Iterable[Span], cuts: list[datetime]) -> list[list[Span]]:
    """The spans cut at `cuts` (in order): one list before each, and one for what follows the last."""
    windows: list[list[Span]] = [[]]
    for span in spans:
        start = span.start
        while len(windows) <= len(cuts) and cuts[len(windows) - 1] <= span.end:
            cut = cuts[len(windows) - 1]
            if start < cut:
                windows[-1].append(Span(span.kind, start, cut, span.attempt))
                start = cut
            windows.append([])
        if start < span.end:
            windows[-1].append(Span(span.kind, start, span.end, span.attempt))
    windows += [[] for _ in range(len(cuts) + 1 - len(windows))]
    return windows
