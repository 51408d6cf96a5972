"""The forecast of one specification: which questions are asked, of which markets, and under which assumptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec

from spotrun.errors import SpecInvalid
from spotrun.intervals import COMMIT_GAP, auto_interval
from spotrun.market import affordable
from spotrun.offering import CapacityType, Offering
from spotrun.policy import assumptions
from spotrun.policy.considered import Considered
from spotrun.policy.situation import name_of
from spotrun.simulation.forecast import Forecast, Market, Question, forecast, tick_for
from spotrun.simulation.traces import Windows
from spotrun.spec import RunSpec
from spotrun.strategies.port import Job
from spotrun.units import format_duration


class Plan(msgspec.Struct, frozen=True):
    """What is known before any money is spent. `assumed` says in one line what all of it rests on."""

    work: timedelta
    time_left: timedelta
    epochs: int | None
    forecasts: tuple[Forecast, ...]
    offerings: tuple[Considered, ...]
    assumed: str

    def epochs_per_usd(self, row: Forecast) -> float | None:
        return self.epochs / row.cost_mean_usd if self.epochs and row.cost_mean_usd else None


def plan(
    spec: RunSpec,
    offerings: Sequence[Offering],
    work: timedelta,
    time_left: timedelta,
    lifetimes: int,
    *,
    epochs: int | None = None,
    seed: int = 0,
    record: tuple[str, Windows] | None = None,
    considered: Sequence[Considered] = (),
    progressed: Callable[[int, int], None] = lambda done, of: None,
) -> Plan:
    """
    Forecast `spec` on the `offerings` that suit it, cheapest first, to be done in `time_left`.

    `record` is a recorded market with its name; without one markets are generated. `considered` is told as it is.

    Raises:
        SpecInvalid: no on-demand offering suits, so that no deadline can be promised.
    """
    job = job_for(spec, offerings, work, time_left)
    questions = _questions(spec, [found for found in offerings if affordable(found, spec.resources.max_price)])
    budget = spec.budget.max_usd
    rows = forecast(
        questions,
        job,
        _rework(spec).total_seconds() / 2,
        lifetimes,
        budget_usd=None if budget is None else float(budget),
        seed=seed,
        record=None if record is None else record[1],
        progressed=progressed,
    )
    market = "as in a generator fitted to nine V100 zones of 2023" if record is None else f"as recorded in {record[0]}"
    return Plan(work, time_left, epochs, tuple(rows), tuple(considered), _assumed(spec, job, market))


def job_for(spec: RunSpec, offerings: Sequence[Offering], work: timedelta, time_left: timedelta) -> Job:
    """The job as its strategies see it, with what production assumes of what it has not measured."""
    on_demand = [found.price_usd_per_hour for found in offerings if found.capacity_type is CapacityType.ON_DEMAND]
    if not on_demand:
        raise SpecInvalid("no on-demand offering suits resources", hint="a deadline is kept on demand if need be")
    work_s, rework_s = work.total_seconds(), (_rework(spec) + assumptions.COMMIT).total_seconds()
    return Job(
        work_s=work_s,
        deadline_s=time_left.total_seconds(),
        changeover_s=assumptions.CHANGEOVER.total_seconds(),
        tick_s=tick_for(time_left.total_seconds()),
        on_demand_usd_per_hour=float(min(on_demand)),
        margin_s=rework_s + assumptions.WORK_DOUBT_MIN * work_s,
    )


def _rework(spec: RunSpec) -> timedelta:
    """What one loss without notice undoes at most; every N steps is not known as a time before it is measured."""
    every = spec.checkpoint.every
    interval = every if isinstance(every, timedelta) else auto_interval(assumptions.STALL)
    return max(interval, COMMIT_GAP)


def _questions(spec: RunSpec, offerings: Sequence[Offering]) -> list[Question]:
    """The run's own strategy in its first zone, its region and everywhere; and the two bills to compare it with."""
    spot = [found for found in offerings if found.capacity_type is CapacityType.SPOT]
    if spec.resources.spot_policy == "on-demand" or not spot:
        return [Question("on_demand_only", Market("any", (), (), ()))]
    markets = [
        _market("1 zone", spot[:1]),
        _market("1 region", [found for found in spot if found.region == spot[0].region]),
        _market("all zones", spot),
    ]
    distinct = list({market.pools: market for market in markets}.values())
    asked = dict.fromkeys((spec.policy.strategy, "on_demand_only", "spot_only"))
    return [
        Question(strategy, market)
        for strategy in asked
        for market in ([Market("any", (), (), ())] if strategy == "on_demand_only" else distinct)
    ]


def _market(name: str, offerings: Sequence[Offering]) -> Market:
    return Market(
        name,
        tuple(name_of(found.pool) for found in offerings),
        tuple(found.region for found in offerings),
        tuple(float(found.price_usd_per_hour) for found in offerings),
    )


def _assumed(spec: RunSpec, job: Job, market: str) -> str:
    changeover, undone, tick = (
        format_duration(timedelta(seconds=round(seconds)))
        for seconds in (job.changeover_s, _rework(spec).total_seconds() / 2, job.tick_s)
    )
    return (
        f"Assumed: spot comes and goes {market}; prices stay as they are now; a changeover "
        f"(boot, set-up, restore) takes {changeover}; a loss undoes {undone}; the work is known within "
        f"{assumptions.WORK_DOUBT_MIN:.0%}; one decision in {tick}; on-demand can always be had; storage and requests "
        "are left out."
    )
