"""The results of a bench's trials, and the costs that are computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from enum import StrEnum

import msgspec

from spotrun.account.timeline import Activity, timeline
from spotrun.bench.meter import Measurement
from spotrun.bench.trials import BenchTrial
from spotrun.market.accelerators import count_in
from spotrun.offering import CapacityType, Offering
from spotrun.run.state import RunState
from spotrun.spec.values import Accelerators

SECONDS_PER_HOUR = 3600
OUT_OF_MEMORY = ("out of memory", "outofmemory", "oom-kill", "cannot allocate memory", "memoryerror", "can't allocate")


class TrialOutcome(StrEnum):
    MEASURED = "measured"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    TOO_SHORT = "too short"
    NO_MONEY = "no money left"


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """
    The hourly prices, in USD, of the cheapest suitable spot and on-demand instances. A price is None if there is no
    suitable offering of its capacity type.
    """

    spot: Decimal | None = None
    on_demand: Decimal | None = None
    simulated: bool = False

    @classmethod
    def of(cls, offerings: Iterable[Offering], nodes: int = 1) -> Prices:
        """Return the total prices of `nodes` instances of the cheapest offering."""
        found = list(offerings)
        return cls(
            spot=_least(found, CapacityType.SPOT, nodes),
            on_demand=_least(found, CapacityType.ON_DEMAND, nodes),
            simulated=any(each.simulated for each in found),
        )


def _least(offerings: Sequence[Offering], capacity: CapacityType, nodes: int) -> Decimal | None:
    prices = (each.price_usd_per_hour * nodes for each in offerings if each.capacity_type is capacity)
    return min(prices, default=None)


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """
    A trial and its result.

    `instance_type` is the type on which the trial trained, "" if it never trained. `begins_s` has the seconds of run
    time from the creation of the trial's run to its first step, keyed by phase (wait, boot, setup, restore). `usd` is
    the trial's cost. If nothing was measured (`measured` is None), `reason` says why.
    """

    trial: BenchTrial
    fate: TrialOutcome
    prices: Prices
    instance_type: str = ""
    accelerators: str = ""
    measured: Measurement | None = None
    begins_s: dict[str, float] = {}
    usd: Decimal = Decimal(0)
    run: str = ""
    reason: str = ""

    @property
    def rate(self) -> float | None:
        """The samples per second or, if the number of samples is unknown, the steps per second."""
        if self.measured is None:
            return None
        return self.measured.samples_per_s or self.measured.steps_per_s

    def per_usd(self, usd_per_hour: Decimal | None) -> float | None:
        """Return the samples per dollar or, if the number of samples is unknown, the steps per dollar."""
        if self.rate is None or not usd_per_hour:
            return None
        return self.rate * SECONDS_PER_HOUR / float(usd_per_hour)

    def hours(self, samples: float | None = None) -> float | None:
        """
        Return the hours of training for the whole job, or for `samples` samples; None if unknown. The time for
        validation, starts and interruptions is not included.
        """
        if self.measured is None:
            return None
        if samples is not None:
            return (
                None
                if self.measured.samples_per_s is None
                else samples / self.measured.samples_per_s / SECONDS_PER_HOUR
            )
        total = self.measured.steps_total
        return None if total is None else total / self.measured.steps_per_s / SECONDS_PER_HOUR

    def usd_of_job(self, usd_per_hour: Decimal | None, samples: float | None = None) -> float | None:
        hours = self.hours(samples)
        return None if hours is None or usd_per_hour is None else hours * float(usd_per_hour)


def devices_of(row: BenchRow) -> int:
    return row.trial.devices or count_in(row.accelerators) or 1


def efficiency(row: BenchRow, rows: Iterable[BenchRow]) -> float | None:
    """
    Return the row's scaling efficiency: its rate, divided by n times the rate of a single device. n is the row's number
    of devices.

    Return None if n is 1, or if no row measured a single device of this kind with the same batch size and precision.
    """
    number = devices_of(row)
    alone = next((each for each in rows if devices_of(each) == 1 and _but_for_devices(each, row)), None)
    if number == 1 or alone is None or not alone.rate or row.rate is None:
        return None
    return row.rate / (alone.rate * number)


def _but_for_devices(one: BenchRow, other: BenchRow) -> bool:
    same = (one.trial.batch, one.trial.precision) == (other.trial.batch, other.trial.precision)
    return same and _device(one) == _device(other)


def _device(row: BenchRow) -> str:
    kind = row.trial.kind
    return kind.name if isinstance(kind, Accelerators) else str(kind)


def begins_s(state: RunState) -> dict[str, float]:
    """Return the seconds that a run spent before its first step, keyed by activity: wait, boot, setup or restore."""
    found: dict[str, float] = {}
    for span in timeline(state, state.created_at if state.terminal is None else state.terminal.at):
        if span.kind in (Activity.PRODUCTIVE, Activity.REWORK, Activity.STALL):
            break
        found[span.kind.value] = found.get(span.kind.value, 0.0) + span.duration.total_seconds()
    return found


def fate_of(detail: str) -> TrialOutcome:
    """Return OUT_OF_MEMORY if `detail`, a run's last message, says that memory ran out; otherwise FAILED."""
    return (
        TrialOutcome.OUT_OF_MEMORY if any(words in detail.lower() for words in OUT_OF_MEMORY) else TrialOutcome.FAILED
    )


def best(rows: Iterable[BenchRow]) -> BenchRow | None:
    """
    Return the row of the trial that trains on the most samples per dollar, at the lower of its spot and on-demand
    prices. Return None if no row was measured.
    """
    priced = [(value, row) for row in rows if (value := row.per_usd(cheapest(row.prices))) is not None]
    return max(priced, key=lambda each: each[0])[1] if priced else None


def cheapest(prices: Prices) -> Decimal | None:
    return min((price for price in (prices.spot, prices.on_demand) if price is not None), default=None)
