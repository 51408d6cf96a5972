"""
Computes running totals of a run's costs, and of counts such as the number of requests.

The total at the end of each epoch is rounded to nano-dollars. An epoch's cost is the difference between the totals at
its end and at its beginning, so the epochs' costs add up exactly to the total.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import zip_longest

from msgspec.structs import replace

from spotrun.account.cross_region import BYTES_PER_GB, crossings
from spotrun.account.outcome import interrupted
from spotrun.account.timeline import FOREVER, Activity, Span, account_end
from spotrun.account.waiting import WaitingInterval, waiting
from spotrun.offering import CapacityType
from spotrun.run.billing import NANO_DOLLAR, ZERO, Meter, to_nano
from spotrun.run.bounds import amount_of
from spotrun.run.state import RunState
from spotrun.spec.values import ON_DEMAND, is_instance_type
from spotrun.units import plain_usd

HOURS_PER_MONTH = 730
MICROSECONDS_PER_HOUR = 3_600_000_000
_MICROSECOND = timedelta(microseconds=1)
_CHANGEOVER = (Activity.BOOT, Activity.SETUP, Activity.RESTORE)


@dataclass(frozen=True)
class Bill:
    """
    The costs and counts accrued up to one time, or between two times.

    - `counterfactual_usd`: what the run would have cost on demand, at the price of the job's baseline (usually the same
      instance type on demand). The run would have paid for its productive time, and for one start: the first boot,
      setup and restore. Stalls are not included, because a run on demand needs no checkpoints.
    - `paid`: the sum of the billed times of all instances
    - `own_usd`: the cost of wear and power on the user's own machine
    - `own_paid`: the time for which the user's own machine was used
    - `waiting_usd`: the cost of a gang's members while they were ready to train, but had to wait for other members
      before their attempt began. It is a part of the instances' cost.
    """

    spot_usd: Decimal
    on_demand_usd: Decimal
    own_usd: Decimal
    storage_usd: Decimal
    requests_usd: Decimal
    egress_usd: Decimal
    waiting_usd: Decimal
    counterfactual_usd: Decimal
    paid: timedelta
    own_paid: timedelta
    interruptions: int
    steps_redone: int

    @property
    def cost_usd(self) -> Decimal:
        return self.spot_usd + self.on_demand_usd + self.own_usd + self.kept_usd

    @property
    def kept_usd(self) -> Decimal:
        """The cost of storing and moving checkpoints: storage, requests and egress."""
        return self.storage_usd + self.requests_usd + self.egress_usd

    def __sub__(self, other: Bill) -> Bill:
        return Bill(**{name: amount - getattr(other, name) for name, amount in vars(self).items()})


NOTHING = Bill(ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, timedelta(0), timedelta(0), 0, 0)


class Tally:
    """Counts the events that happened up to a given time."""

    def __init__(self, happened: Iterable[tuple[datetime, int]]) -> None:
        self._moments: list[datetime] = []
        self._counts = [0]
        for moment, count in sorted(happened):
            self._moments.append(moment)
            self._counts.append(self._counts[-1] + count)

    def until(self, moment: datetime) -> int:
        """Return the number of events up to and including `moment`."""
        return self._counts[bisect_right(self._moments, moment)]


class Integral:
    """
    The integral over time of amounts, such as stored bytes or dollars an hour, that each apply from their start to
    their end.
    """

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
        """Return the integral from the start to `moment`, in amounts times microseconds."""
        index = bisect_right(self._moments, moment) - 1
        if index < 0:
            return ZERO
        return self._sums[index] + self._amounts[index] * _microseconds(moment - self._moments[index])


def _microseconds(duration: timedelta) -> int:
    return duration // _MICROSECOND


class Machines:
    """
    Computes the cost of the instances of one capacity type up to a given time.

    Each instance's bill is rounded separately. To be fast, the bills of ended instances are added up only once; each
    call computes only the bills of instances that ran at the given time.
    """

    def __init__(self, meters: Iterable[Meter | WaitingInterval]) -> None:
        changes: list[tuple[datetime, bool, Meter | WaitingInterval]] = []
        for meter in meters:
            if meter.billed_from is not None:
                changes.append((meter.billed_from, False, meter))
                if meter.ended_at is not None:
                    changes.append((max(meter.billed_from, meter.ended_at), True, meter))
        self._moments: list[datetime] = []
        self._settled = [(ZERO, timedelta(0))]
        self._running: list[tuple[Meter | WaitingInterval, ...]] = [()]
        for moment, ends, meter in sorted(changes, key=lambda change: change[:2]):
            (usd, paid), running = self._settled[-1], self._running[-1]
            if ends:
                running = tuple(other for other in running if other is not meter)
                usd, paid = usd + meter.cost_until(FOREVER), paid + meter.time_until(FOREVER)
            else:
                running = (*running, meter)
            self._moments.append(moment)
            self._settled.append((usd, paid))
            self._running.append(running)

    def until(self, moment: datetime) -> tuple[Decimal, timedelta]:
        """Return the dollars and the billed time of all instances up to `moment`."""
        index = bisect_left(self._moments, moment)
        usd, paid = self._settled[index]
        for meter in self._running[index]:
            usd, paid = usd + meter.cost_until(moment), paid + meter.time_until(moment)
        return usd, paid


class Totals:
    def __init__(self, state: RunState, spans: tuple[Span, ...], horizon: datetime) -> None:
        rule = state.created.billing
        self._storage_prices = state.created.storage
        self._machines = {
            kind: Machines(
                meter
                for launch in state.launches.values()
                if launch.intent.offering.capacity_type is kind
                for meter in launch.meters(rule)
            )
            for kind in CapacityType
        }
        self._waiting = Machines(waiting(state, horizon))
        kept_until = account_end(state, horizon)
        self._stored = Integral([*_stored(state, kept_until)])
        # For a commit, the agent sends put requests to the store: one for each object of the checkpoint, and one for
        # the manifest. Then it reads the objects back, with get requests, to verify them. Each ledger entry takes one
        # more put.
        self._puts = Tally(
            [(commit.at, commit.event.puts) for commit in state.commits]
            + [(outputs.at, outputs.event.objects) for outputs in state.all_outputs()]
            + [(written_at, 1) for written_at in state.entry_times]
            + [*_pack_objects(state, "run")]
        )
        self._gets = Tally(
            [
                *((commit.at, commit.event.objects) for commit in state.commits),
                *state.restores,
                *_pack_objects(state, "unpacked"),
            ]
        )
        self._egress_nano = Tally((at, int(usd / NANO_DOLLAR)) for at, usd in crossings(state, state.launches.values()))
        self._on_demand_bill = Integral(_counterfactual(state, spans))
        self._interruptions = Tally(
            (attempt.end.known_at, 1)
            for attempt in state.attempts.values()
            if attempt.end is not None and interrupted(state, attempt)
        )
        self._steps_redone = Tally(
            (trainer.resumed_at, trainer.steps_redone)
            for attempt in state.attempts.values()
            for trainer in attempt.trainers
        )

    def until(self, moment: datetime) -> Bill:
        spot_usd, spot_paid = self._machines[CapacityType.SPOT].until(moment)
        on_demand_usd, on_demand_paid = self._machines[CapacityType.ON_DEMAND].until(moment)
        own_usd, own_paid = self._machines[CapacityType.OWN].until(moment)
        return Bill(
            spot_usd=spot_usd,
            on_demand_usd=on_demand_usd,
            own_usd=own_usd,
            storage_usd=self._storage(moment),
            requests_usd=self._requests(moment),
            egress_usd=self._egress_nano.until(moment) * NANO_DOLLAR,
            waiting_usd=self._waiting.until(moment)[0],
            counterfactual_usd=to_nano(self._on_demand_bill.until(moment) / MICROSECONDS_PER_HOUR),
            paid=spot_paid + on_demand_paid + own_paid,
            own_paid=own_paid,
            interruptions=self._interruptions.until(moment),
            steps_redone=self._steps_redone.until(moment),
        )

    def _storage(self, moment: datetime) -> Decimal:
        gb_months = self._stored.until(moment) / (BYTES_PER_GB * HOURS_PER_MONTH * MICROSECONDS_PER_HOUR)
        return to_nano(self._storage_prices.usd_per_gb_month * gb_months)

    def _requests(self, moment: datetime) -> Decimal:
        prices = self._storage_prices
        puts, gets = self._puts.until(moment), self._gets.until(moment)
        return to_nano((prices.usd_per_1000_puts * puts + prices.usd_per_1000_gets * gets) / 1000)


def _stored(state: RunState, kept_until: datetime) -> Iterable[tuple[datetime, datetime, Decimal]]:
    """
    Yield when storage begins, when it ends, and how many bytes are stored, for everything that the store keeps: each
    checkpoint (from its commit on), each setup cache (from the entry that reports it), and the files of the script.
    """
    for commit in state.commits:
        yield commit.at, min(kept_until, commit.retired_at or kept_until), Decimal(commit.event.stored_bytes)
    for one in state.packed:
        yield one.at, kept_until, Decimal(one.setup.packed_bytes)
    stored = state.all_outputs()
    for outputs, later in zip_longest(stored, stored[1:]):
        until = kept_until if later is None else min(kept_until, later.at)
        yield outputs.at, until, Decimal(outputs.event.stored_bytes)


def _pack_objects(state: RunState, how: str) -> Iterable[tuple[datetime, int]]:
    """
    Yield, for each reported `setup`, the time of the entry and a number of objects in the store. If `how` is "run",
    only instances that ran the command count, and the objects are those that they stored. If it is "unpacked", only
    instances that unpacked a setup cache count, and the objects are those that they fetched.
    """
    for one in state.setups():
        if one.setup.how == how:
            yield one.at, one.setup.objects


def baseline_usd_per_hour(state: RunState) -> Decimal | None:
    """
    Return the hourly price of the job's `report.baseline`. Return None if the job names no baseline. Without a baseline
    price, the caller uses the on-demand price of the instance type that trained.

    Also return None if the baseline is an instance type whose price is unknown, for example in a rehearsal, which looks
    up no prices. The summary's `assumptions` then name that type.
    """
    report = state.created.job("report")
    found = report.get("baseline", ON_DEMAND)
    return amount_of(report.get("baseline_usd_per_hour") if is_instance_type(str(found)) else found)


def baseline_in_words(state: RunState) -> str:
    """Describe the baseline: `the on-demand price of the same type` or, if the job names another baseline, that one."""
    named, usd_per_hour = str(state.created.job("report").get("baseline", ON_DEMAND)), baseline_usd_per_hour(state)
    if usd_per_hour is not None:
        kind = f", {named} on demand" if is_instance_type(named) else ""
        return f"${plain_usd(usd_per_hour)} an hour{kind} (report.baseline)"
    unpriced = f" (that of {named}, report.baseline, was not looked up)" if is_instance_type(named) else ""
    at_home = ", at home: that of the cheapest type in the cloud" if state.created.job("resources").get("home") else ""
    return f"the on-demand price of the same type{at_home}{unpriced}"


def _counterfactual(state: RunState, spans: tuple[Span, ...]) -> Iterable[tuple[datetime, datetime, Decimal]]:
    """
    Yield the times that a run on demand would have had to pay for too: all productive time, and the run's first start.
    Each item is a start, an end, and the total hourly price of the machines on demand.
    """
    baseline = baseline_usd_per_hour(state)
    first = next((span for span in spans if span.kind is Activity.PRODUCTIVE), None)
    for span in spans:
        if span.attempt is None:
            continue
        starting = (
            first is not None
            and span.attempt == first.attempt
            and span.kind in _CHANGEOVER
            and span.start < first.start
        )
        if span.kind is Activity.PRODUCTIVE or starting:
            attempt = state.attempts[span.attempt]
            intent = state.launch_of(attempt).intent
            rented = replace(intent.offering, capacity_type=CapacityType.ON_DEMAND)
            attached = state.created.billing.attached_to(rented).attached_usd_per_hour
            price = (intent.on_demand_usd_per_hour if baseline is None else baseline) + attached
            yield span.start, span.end, price * len(attempt.names)
