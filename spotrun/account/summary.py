"""
The cost of a run, in dollars and in time, per completed epoch (protocol 24 and 26). Pure: no clock, no I/O.

    epochs + rest = total                  both the dollars (Decimal) and the times (timedelta) add up exactly

The cost of an epoch is all cost that accrues from the end of the previous epoch to the moment when the epoch's last
step is trained. If the last steps are lost, this moment comes when they have been repeated. If two instances run side
by side, the cost of both counts.

The rest is the cost that belongs to no completed epoch, because it accrued after the last one. Until the run is
completed, reports call it *unfinished*. Afterwards they call it *end of run*: it covers the last checkpoint, and the
part of the script after its training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from spotrun.account.gang_sizes import OfSize, by_size, intervals
from spotrun.account.gaps import Gap, gaps
from spotrun.account.losses import Loss, losses
from spotrun.account.outcome import completed_epochs, is_plain, outcome
from spotrun.account.timeline import DOWNTIME, Activity, Span, account_end, spent, timeline
from spotrun.account.totals import NOTHING, Bill, Totals, baseline_in_words
from spotrun.account.unseen_ends import UnseenEnds, in_words, unseen_ends
from spotrun.account.work import Work, work_of
from spotrun.run.billing import SECONDS_PER_HOUR, exact_seconds, to_nano
from spotrun.run.events import SetUp
from spotrun.run.state import RunState
from spotrun.units import count_of, plain_usd

CHANGED = "the same samples in the same order, but results may differ in their last bits"
"""What users can rely on if a training changes its instance type. Reports quote this text."""


@dataclass(frozen=True)
class Account(Bill):
    """
    The account of a completed epoch (`epoch`, counted from 0), of the rest (the cost that belongs to no completed
    epoch), or of the whole run. `epoch` is None for the last two.
    """

    epoch: int | None
    times: Mapping[Activity, timedelta]
    size: int = 1
    """The number of instances that train together."""
    at_home: bool = False
    """True if the job allows training on the user's own machine."""

    @property
    def productive(self) -> timedelta:
        return self.times[Activity.PRODUCTIVE]

    @property
    def downtime(self) -> timedelta:
        return sum((self.times[kind] for kind in DOWNTIME), timedelta(0))

    @property
    def wall(self) -> timedelta:
        """The sum of productive time and downtime. Neither includes pauses."""
        return self.productive + self.downtime

    @property
    def savings(self) -> float | None:
        """The savings as a share of the on-demand bill (0.7 is 70 %); None if that bill is zero."""
        if not self.counterfactual_usd:
            return None
        return float(1 - self.cost_usd / self.counterfactual_usd)

    @property
    def goodput(self) -> float | None:
        """
        The sum of all instances' productive time, divided by the sum of their paid time. It is above 1 if instances
        trained for free (not billed by the cloud), and None if there is no paid time.
        """
        return self.size * self.productive / self.paid if self.paid else None

    @property
    def usd_per_productive_hour(self) -> Decimal | None:
        """The whole cost divided by the productive hours, rounded to nano-dollars; None if there are no such hours."""
        if not self.productive:
            return None
        return to_nano(self.cost_usd * SECONDS_PER_HOUR / exact_seconds(self.productive))


@dataclass(frozen=True)
class RunSummary:
    """
    The cost of a run. `state` is `running`, `completed`, `stopped` or `failed`; `run` is the name of the run's folder.

    `setups` says for each attempt how the job's `setup` was done on its instance; attempts without `setup` are left
    out. `ordinals` maps the number of each attempt to the number that users see (`RunState.ordinals`). `plain` is True
    if the training reports no steps. `time_scale` is the ratio of run time to system time. `work` identifies the
    training, so that runs of the same training can be compared. `gaps` are the parts of the training's state that
    change but are in no checkpoint. `unseen` is the range of the cost if no runner saw how some instances ended.
    `by_members` has the training and the cost by the number of members that trained, if this number has changed.
    `assumptions` states in one line what the figures are based on. `caveats` are those of the assumptions that hold for
    this run and not for most others.
    """

    run: str
    name: str
    state: str
    started_at: datetime
    ended_at: datetime | None
    epochs: tuple[Account, ...]
    rest: Account
    total: Account
    losses: tuple[Loss, ...]
    setups: Mapping[int, SetUp]
    ordinals: Mapping[int, int]
    simulated: bool
    plain: bool
    time_scale: float
    work: Work
    gaps: tuple[Gap, ...]
    unseen: UnseenEnds | None
    by_members: tuple[OfSize, ...]
    assumptions: str
    caveats: tuple[str, ...]

    @property
    def usd_per_epoch(self) -> Decimal | None:
        """The whole cost divided by the number of completed epochs; None if no epoch is completed yet."""
        return self.total.cost_usd / len(self.epochs) if self.epochs else None

    @property
    def rest_name(self) -> str:
        """The name that tables give to the cost that belongs to no completed epoch (`rest`)."""
        if self.state != "completed":
            return "unfinished"
        return "end of run" if self.epochs else "no epochs"


def summarise(state: RunState, now: datetime) -> RunSummary:
    """Return the account of a run as of `now`. Anything that has not ended yet is billed and timed up to `now`."""
    created = state.created
    spans = timeline(state, now)
    completions = completed_epochs(state)
    horizon = _horizon(state, now)
    totals = Totals(state, spans, horizon)
    cuts = [at for _, at in completions]
    bills = [totals.until(at) for at in [*cuts, horizon]]
    times = [spent(window) for window in _windows(spans, cuts)]
    names = [*(epoch for epoch, _ in completions), None]
    unseen = unseen_ends(state, bills[-1].cost_usd)
    at_home = created.job("resources").get("home") is not None
    parts = [bill - before for bill, before in zip(bills, [NOTHING, *bills[:-1]], strict=True)]
    *epochs, rest = [
        Account(**vars(part), epoch=epoch, times=time, size=created.size, at_home=at_home)
        for part, epoch, time in zip(parts, names, times, strict=True)
    ]
    return RunSummary(
        run=f"{created.name}-{created.uid}",
        name=created.name,
        state=outcome(state),
        started_at=state.created_at,
        ended_at=None if state.terminal is None else state.terminal.at,
        epochs=tuple(epochs),
        rest=rest,
        total=Account(**vars(bills[-1]), epoch=None, times=spent(spans), size=created.size, at_home=at_home),
        losses=losses(state),
        setups={each.number: each.setup for each in state.attempts.values() if each.setup and each.setup.how != "none"},
        ordinals=state.ordinals(),
        simulated=created.simulated,
        plain=is_plain(state),
        time_scale=created.time_scale,
        work=work_of(state, len(epochs)),
        gaps=gaps(state),
        unseen=unseen,
        by_members=by_size(intervals(state, now)),
        assumptions=assumptions(state, unseen),
        caveats=tuple(caveats(state, unseen)),
    )


def bill_series(state: RunState, now: datetime, points: int) -> list[tuple[datetime, Bill]]:
    """
    Return the bills at `points` times (2 or more), evenly spaced from the run's creation to the end of its costs
    (`_billed_until`).

    The last bill covers all entries of the ledger, even those written after the run's end, because the request that
    writes an entry is billed too.
    """
    end = _billed_until(state, now)
    whole = end - state.created_at
    moments = [state.created_at + whole * n / (points - 1) for n in range(points - 1)]
    bills = bills_at(state, now, [*moments, _horizon(state, now)])
    return list(zip([*moments, end], bills, strict=True))


def bills_at(state: RunState, now: datetime, moments: Iterable[datetime]) -> list[Bill]:
    """Return, for each of the times `moments`, the bill that has accrued by then."""
    totals = Totals(state, timeline(state, now), _horizon(state, now))
    return [totals.until(moment) for moment in moments]


def assumptions(state: RunState, unseen: UnseenEnds | None) -> str:
    """Describe in one line what the figures are based on."""
    created = state.created
    simulated = "instance prices are SIMULATED, nobody bills them"
    prices = simulated if created.simulated else "prices as the cloud reported them"
    parts = [
        prices,
        f"instances: {created.billing.source}",
        f"storage and requests: {created.storage.source}",
        "what is stored: the checkpoints, from commit to removal or the run's end",
        _egress(state),
        f"all on demand: the productive time and one start, at {baseline_in_words(state)}",
    ]
    lists = {launch.intent.offering.price_list for launch in state.launches.values()} - {""}
    if lists:
        parts.append(f"prices on demand: {', '.join(sorted(lists))}")
    return "; ".join([*parts, *caveats(state, unseen)])


def caveats(state: RunState, unseen: UnseenEnds | None) -> list[str]:
    """Return the assumptions that hold for this run and not for most others."""
    created, parts = state.created, list[str]()
    unpriced = sum(member.billed_from is not None and not member.prices for member in state.members())
    if any(member.recorded is not None and member.gone is None for member in state.members()):
        verb = "down" if created.is_bench else "resume"
        parts.append(f"instances whose end is not recorded are billed up to now (`spotrun {verb}` records it)")
    if unseen is not None:
        parts.append(in_words(unseen))
    if unpriced:
        parts.append(f"UNKNOWN PRICE of {count_of(unpriced, 'instance')}, counted as 0: the true cost is higher")
    if len(types := types_trained(state)) > 1:
        parts.append(f"trained on {' and '.join(types)}: {CHANGED}")
    if state.pauses:
        parts.append("while it was stopped, the run's clock stood still")
    if created.time_scale != 1:
        parts.append(f"times are run time, {created.time_scale:g} x as fast as the wall clock")
    return parts


def types_trained(state: RunState) -> list[str]:
    """
    Return the types of accelerators on which the run has trained, in the order of their first steps. An instance
    without accelerators is listed by its instance type. Return [] if the job allows only one type.
    """
    resources = state.created.job("resources")
    if not isinstance(resources.get("accelerators"), dict) and resources.get("home") is None:
        return []
    used = (
        state.launch_of(attempt).intent.offering
        for attempt in state.attempts.values()
        if any(trainer.started_at is not None for trainer in attempt.trainers)
    )
    return list(dict.fromkeys(each.accelerators or each.instance_type for each in used))


def _egress(state: RunState) -> str:
    storage = state.created.storage
    if not storage.region:
        return "egress: none counted (the store is a folder, or names no region)"
    regions = {launch.intent.offering.region for launch in state.launches.values()}
    crossed = sorted(region for region in regions if storage.charges(region))
    if not crossed:
        return "egress: none (same region)"
    rates = (
        f"{region} ${plain_usd(storage.read_usd_per_gb(region))} a GB read, "
        f"${plain_usd(storage.write_usd_per_gb(region))} written"
        for region in crossed
    )
    return f"egress between the bucket in {storage.region} and {'; '.join(rates)}"


def _horizon(state: RunState, now: datetime) -> datetime:
    """
    Return `now` or, if later, the latest time in the ledger. The clock of a machine that wrote an entry may be ahead of
    this machine's clock.
    """
    ended = [member.gone.ended_at for member in state.members() if member.gone is not None]
    return max([now, *state.entry_times, *ended])


def _billed_until(state: RunState, now: datetime) -> datetime:
    """
    Return the time up to which costs can accrue: the later of the run's end and its last instance's end. While the run
    or an instance is still running, this is `now`.
    """
    instances = [member for member in state.members() if member.billed_from is not None]
    if state.terminal is None or any(member.gone is None for member in instances):
        return max(state.created_at, now)
    return max([account_end(state, now), *(member.gone.ended_at for member in instances if member.gone is not None)])


def _windows(spans: Iterable[Span], cuts: list[datetime]) -> list[list[Span]]:
    """
    Split the spans at the times `cuts`, which are sorted. Return several lists: the spans before the first cut, the
    spans between each two successive cuts, and the spans after the last cut.
    """
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
