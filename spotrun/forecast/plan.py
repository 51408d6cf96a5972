"""Prepares the forecast of a job: chooses the strategies and markets to compare, and the assumptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf, isinf

import msgspec

from spotrun.clouds.local.config import NOTICE
from spotrun.clouds.local.market import UNANNOUNCED_SHARE
from spotrun.errors import SpecInvalid
from spotrun.forecast.kinds import Share, choice_of, forecast_of_kinds
from spotrun.forecast.lifetime_forecast import (
    GENERATED,
    Forecast,
    ForecastRequest,
    Inputs,
    JobUncertainty,
    forecast,
    tick_for,
)
from spotrun.forecast.lifetimes import STANDBY, Source, SpotPools
from spotrun.forecast.measured import CompletedRun, RunMeasurements
from spotrun.forecast.ticks import Standby
from spotrun.intervals import COMMIT_GAP, MEAN_TIME_BETWEEN_INTERRUPTIONS, auto_interval, expected_rework
from spotrun.market.gang_losses import first_of
from spotrun.market.world import affordable
from spotrun.offering import CapacityType, Offering
from spotrun.policy import assumptions
from spotrun.policy.capacity import patience
from spotrun.policy.cross_region import NO_TRANSFER, Transfer, transfer_of
from spotrun.policy.explain import ConsideredOffering
from spotrun.policy.pools import name_of
from spotrun.policy.throughput import PUBLISHED_DOUBT
from spotrun.run.events import RunCreated
from spotrun.spec.model import RunSpec
from spotrun.strategies.patient import Patient
from spotrun.strategies.port import ON_DEMAND, Job
from spotrun.units import format_duration

NOTHING_MEASURED = RunMeasurements()
ANYWHERE = SpotPools("any", (), (), ())


class Repeats(msgspec.Struct, frozen=True):
    """
    The rework of a command without checkpoints, which starts from the beginning after each loss. It is assumed that a
    loss comes every `loss_every_s` seconds on average. `expected_rework_s` is the mean rework; None if losses are so
    frequent that the command would hardly ever complete.
    """

    loss_every_s: float
    expected_rework_s: float | None


class Plan(msgspec.Struct, frozen=True):
    """
    The forecast of a job, made before any money is spent. `assumed` states the assumptions in one line.

    `time_left` is None for a run without a deadline. `repeats` is True if an interruption will probably make the job
    start over: the job runs a command, names no files as its state, and none of its earlier runs had a checkpoint. If
    the job allows several kinds of instances, `expects` lists the kinds that will probably do most of the work, the
    most probable first.

    `market` describes the simulated markets, to complete the sentence "spot comes and goes {market}". `completed` is
    the run that has measured `work`; None if the work is known from elsewhere.
    """

    work: timedelta
    time_left: timedelta | None
    epochs: int | None
    forecasts: tuple[Forecast, ...]
    offerings: tuple[ConsideredOffering, ...]
    assumed: str
    repeats: Repeats | None = None
    expects: tuple[Share, ...] = ()
    market: str = ""
    completed: CompletedRun | None = None

    def epochs_per_usd(self, row: Forecast) -> float | None:
        return self.epochs / row.cost_mean_usd if self.epochs and row.cost_mean_usd else None


class CheckpointTraffic(msgspec.Struct, frozen=True):
    """
    Traffic between instances and bucket, which costs money if they are in different regions. Each start fetches a
    checkpoint of `checkpoint_bytes`, and a checkpoint of this size is saved every `interval_s` seconds. If several
    instances (`size`) train together, each checkpoint is transferred only once.
    """

    created: RunCreated | None = None
    checkpoint_bytes: int = 0
    interval_s: float = 600.0
    size: int = 1

    def to(self, offering: Offering) -> Transfer:
        if self.created is None or not self.created.storage.crosses(offering.region):
            return NO_TRANSFER
        return transfer_of(self.created, offering.region, self.interval_s, self.checkpoint_bytes, self.checkpoint_bytes)

    def usd_per_hour(self, offering: Offering) -> float:
        return self.price_usd_per_hour(offering) + self.to(offering).usd_per_hour

    def price_usd_per_hour(self, offering: Offering) -> float:
        """Return the price per hour, in USD, of all instances that train together."""
        return self.size * float(offering.price_usd_per_hour)


NOTHING_SENT = CheckpointTraffic()


def plan(
    spec: RunSpec,
    offerings: Sequence[Offering],
    work: timedelta,
    time_left: timedelta | None,
    lifetimes: int,
    *,
    epochs: int | None = None,
    measured: RunMeasurements = NOTHING_MEASURED,
    seed: int = 0,
    source: Source = GENERATED,
    considered: Sequence[ConsideredOffering] = (),
    created: RunCreated | None = None,
    progressed: Callable[[int, int], None] = lambda done, of: None,
) -> Plan:
    """
    Forecast the job `spec`. `offerings` are the offerings that suit the job, the cheapest first. `time_left` is the
    time until the deadline.

    `measured` has the measurements of earlier runs. `source` generates the simulated markets. `considered` becomes the
    plan's `offerings`. `created` says in which region the bucket is; without it, traffic is assumed to cost nothing.

    Raises:
        SpecInvalid: no on-demand offering suits the job, so a deadline cannot be promised.
    """
    made_of = asked(spec, offerings, work, time_left, measured, created)
    budget = spec.budget.max_usd
    budget_usd = None if budget is None else float(budget)
    told = _assumed(spec, made_of, measured, source)
    expects: tuple[Share, ...] = ()
    if created is not None and learns(spec):
        strategy = spec.policy.strategy
        choice = choice_of(spec, affordable_of(spec, offerings), made_of, created, strategy, measured.checkpoint_bytes)
        rows, expects = forecast_of_kinds(
            choice, lifetimes, budget_usd=budget_usd, seed=seed, source=source, progressed=progressed
        )
        told += _of_kinds(spec, rows[0].lifetimes)
    else:
        rows = forecast(made_of, lifetimes, budget_usd=budget_usd, seed=seed, source=source, progressed=progressed)
        told += _of_one_kind(spec, offerings)
    repeated = _repeats(spec, work, measured, source)
    measured_by = measured.completed if spec.policy.expected_work is None else None
    return Plan(
        work, time_left, epochs, tuple(rows), tuple(considered), told, repeated, expects, source.words, measured_by
    )


def learns(spec: RunSpec) -> bool:
    """
    Return True if the forecast simulates how a run chooses between kinds of instances. This is done for a job that
    allows several kinds, unless the job trains with a gang.
    """
    return spec.resources.is_choice and spec.num_nodes == 1


def _of_kinds(spec: RunSpec, lifetimes: int) -> str:
    return (
        f" In each of these {lifetimes} lifetimes, the policy of real runs makes the decisions. Each type has a random "
        f"speed that is up to {PUBLISHED_DOUBT:g} times higher or lower than the published speed, and the run "
        f"measures it. The expected work is the work on {spec.resources.kinds[0]}."
    )


def _of_one_kind(spec: RunSpec, offerings: Sequence[Offering]) -> str:
    if not spec.resources.is_choice or not offerings:
        return ""
    told, first = offerings[0].accelerators or offerings[0].instance_type, spec.resources.kinds[0]
    return (
        f" The forecast is for {told} alone, which costs least at the published speeds. expected_work is taken to be "
        f"the work on {first}. A real run measures the speeds, and may change to another type."
    )


def _repeats(spec: RunSpec, work: timedelta, measured: RunMeasurements, source: Source) -> Repeats | None:
    if spec.train.run is None or spec.train.state or measured.checkpoint_bytes:
        return None
    every = MEAN_TIME_BETWEEN_INTERRUPTIONS / _times_lost(spec.num_nodes, source)
    rework = expected_rework(work, every)
    return Repeats(every.total_seconds(), None if rework is None else rework.total_seconds())


def asked(
    spec: RunSpec,
    offerings: Sequence[Offering],
    work: timedelta,
    time_left: timedelta | None,
    measured: RunMeasurements = NOTHING_MEASURED,
    created: RunCreated | None = None,
) -> Inputs:
    """
    Return the input for the simulations of `plan`.

    Raises:
        SpecInvalid: no on-demand offering suits the job, so a deadline cannot be promised.
    """
    sent = CheckpointTraffic(created, measured.checkpoint_bytes, _rework(spec).total_seconds(), spec.num_nodes)
    return Inputs(
        questions=tuple(_questions(spec, affordable_of(spec, offerings), sent)),
        job=job_for(spec, offerings, work, time_left, measured, sent),
        rework_s=_rework(spec).total_seconds() / 2,
        doubt=JobUncertainty(measured.work_doubt, measured.changeovers_s, assumptions.CHANGEOVER_DOUBT),
        standby=_standby(spec, offerings, measured),
    )


def affordable_of(spec: RunSpec, offerings: Sequence[Offering]) -> list[Offering]:
    return [found for found in offerings if affordable(found, spec.resources.max_price)]


def job_for(
    spec: RunSpec,
    offerings: Sequence[Offering],
    work: timedelta,
    time_left: timedelta | None,
    measured: RunMeasurements = NOTHING_MEASURED,
    sent: CheckpointTraffic = NOTHING_SENT,
) -> Job:
    """
    Return the job in the form that strategies use. For each figure that was not measured, make the same assumption as
    in real runs.
    """
    on_demand = [sent.usd_per_hour(found) for found in offerings if found.capacity_type is CapacityType.ON_DEMAND]
    if not on_demand and time_left is not None:
        raise SpecInvalid(
            "no on-demand offering suits resources, but the run may need one to meet its deadline",
            hint="change resources so that one suits, or leave out the deadline",
        )
    work_s, rework_s = work.total_seconds(), (_rework(spec) + assumptions.COMMIT).total_seconds()
    changeover_s = measured.changeover_s or assumptions.CHANGEOVER.total_seconds()
    return Job(
        work_s=work_s,
        deadline_s=inf if time_left is None else time_left.total_seconds(),
        changeover_s=changeover_s,
        tick_s=tick_for(2 * (work_s + changeover_s) if time_left is None else time_left.total_seconds()),
        on_demand_usd_per_hour=min(on_demand, default=inf),
        margin_s=rework_s + measured.work_doubt * work_s,
    )


def _rework(spec: RunSpec) -> timedelta:
    """
    Return the most training time that can be lost with an instance: the interval between two checkpoints. If the job
    gives the interval in steps, their duration is not known yet, so the automatic interval is assumed.
    """
    every = spec.checkpoint.every
    interval = every if isinstance(every, timedelta) else auto_interval(assumptions.STALL)
    return max(interval, COMMIT_GAP)


def _standby(spec: RunSpec, offerings: Sequence[Offering], measured: RunMeasurements) -> Standby:
    cooldown_s = spec.policy.return_cooldown.total_seconds() if spec.policy.return_to_spot else inf
    boot_s = spec.boot.total_seconds() if measured.boot_s is None else measured.boot_s
    later_start = measured.later_start if _unpacks(spec, offerings) else 1.0
    return msgspec.structs.replace(STANDBY, ask_every_s=cooldown_s, unbilled_s=boot_s, later_start=later_start)


def _unpacks(spec: RunSpec, offerings: Sequence[Offering]) -> bool:
    """
    Return True if the job's instances can share a setup cache. This works only if all offerings have the same
    accelerators.
    """
    return spec.setup is not None and spec.pack_setup and len({found.accelerators for found in offerings}) == 1


def _questions(spec: RunSpec, offerings: Sequence[Offering], sent: CheckpointTraffic) -> list[ForecastRequest]:
    """
    Return the requests for the rows of the forecast. In three rows, the job's strategy uses the spot pools of one zone,
    of one region, or of all zones. Two more rows, for comparison, use only on-demand or only spot.
    """
    spot = [found for found in offerings if found.capacity_type is CapacityType.SPOT]
    dear = [found for found in offerings if found.capacity_type is CapacityType.ON_DEMAND]
    toll_usd = sent.to(min(dear, key=sent.usd_per_hour)).start_usd if dear else 0.0
    toll = {ON_DEMAND: toll_usd} if toll_usd else {}
    on_demand = [ForecastRequest("on_demand_only", msgspec.structs.replace(ANYWHERE, tolls=toll))] if dear else []
    if spec.resources.spot_policy == "on-demand" or not spot:
        return on_demand
    markets = [
        _market("1 zone", spot[:1], sent, toll),
        _market("1 region", [found for found in spot if found.region == spot[0].region], sent, toll),
        _market("all zones", spot, sent, toll),
    ]
    distinct = list({market.pools: market for market in markets}.values())
    rule = _rule(spec, falls_back=bool(on_demand))
    own, alone = spec.policy.strategy, "spot_only"
    ours = [] if own == "on_demand_only" else [ForecastRequest(own, market, rule) for market in distinct]
    spot_alone = [] if own == alone else [ForecastRequest(alone, market) for market in distinct]
    return ours + on_demand + spot_alone


def _rule(spec: RunSpec, *, falls_back: bool) -> Patient | None:
    """
    Return the rule that decides for a job without a deadline. Return None for a job with a deadline, for which the
    job's strategy decides.
    """
    if spec.policy.deadline is not None:
        return None
    return patience(spec) if falls_back else Patient(inf, None)


def _market(name: str, offerings: Sequence[Offering], sent: CheckpointTraffic, toll: dict[str, float]) -> SpotPools:
    tolls = {name_of(found.pool): sent.to(found).start_usd for found in offerings} | toll
    return SpotPools(
        name,
        tuple(name_of(found.pool) for found in offerings),
        tuple(found.region for found in offerings),
        tuple(sent.price_usd_per_hour(found) for found in offerings),
        tuple(sent.to(found).usd_per_hour for found in offerings),
        {place: usd for place, usd in tolls.items() if usd},
        sent.size,
    )


def _assumed(spec: RunSpec, made_of: Inputs, measured: RunMeasurements, source: Source) -> str:
    job = made_of.job
    changeover, undone, tick = (
        format_duration(timedelta(seconds=round(seconds)))
        for seconds in (job.changeover_s, _rework(spec).total_seconds() / 2, job.tick_s)
    )
    starts = len(measured.changeovers_s)
    runs = "by a bench" if measured.by_bench else f"{starts} x in earlier runs"
    known = f"as measured {runs}" if starts else "not measured yet"
    doubt = f"or {assumptions.CHANGEOVER_DOUBT:g} x less or more"
    unbilled, later = (
        format_duration(timedelta(seconds=round(seconds)))
        for seconds in (made_of.standby.unbilled_s, made_of.standby.later_start * job.changeover_s)
    )
    unpacked = f", {later} once its set-up is packed" if made_of.standby.later_start < 1 else ""
    size = f"checkpoints of {measured.checkpoint_bytes / 1e9:.3g} GB" if measured.checkpoint_bytes else "data alone"
    crosses = any(question.market.tolls for question in made_of.questions)
    far = f"; traffic between regions is counted, for {size}" if crosses else ""
    members = "" if spec.num_nodes == 1 else f"; {_members_lost(spec.num_nodes, source)}"
    always = "" if isinf(job.on_demand_usd_per_hour) else "; on-demand is always available, at its current price"
    return (
        f"Assumed: spot comes and goes {source.words}; a changeover (boot, set-up, restore) takes {changeover} "
        f"{doubt}, {known}{unpacked}, and is not billed for its first {unbilled}; "
        f"{1 - UNANNOUNCED_SHARE:.0%} of losses are announced {format_duration(NOTICE)} ahead, and the others "
        f"undo {undone}{members}; the work is known within {measured.work_doubt:.0%}; one decision every "
        f"{tick}{always}; storage, requests and recommendations to rebalance are left out{far}."
    )


def _members_lost(size: int, source: Source) -> str:
    if source.takes_zones:
        return f"each loss takes all {size} members"
    return (
        f"{size} members are interrupted {first_of(size):.1f} x as often as one instance, and if the zone still has "
        "capacity, only the lost member is replaced, while the others wait"
    )


def _times_lost(size: int, source: Source) -> float:
    """Return how many times as often as one instance a gang of `size` instances is interrupted."""
    return 1.0 if source.takes_zones else first_of(size)
