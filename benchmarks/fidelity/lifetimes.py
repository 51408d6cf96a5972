"""
Lifetimes of a forecast lived by the runner itself, under the very specification that was planned.

Market, work and changeover of a lifetime are those that the ticks had. Its notices are drawn again, as many of them;
the runner does not know how wrong its expected work is; and it keeps its budget, which the ticks only count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from statistics import fmean

import msgspec

from benchmarks.fidelity.job import CHECKPOINT_BYTES, world_of
from spotrun.forecast.lifetime_forecast import (
    GENERATED,
    HORIZON,
    WORKERS,
    Forecast,
    ForecastRequest,
    Inputs,
    horizons,
    outcomes_of,
    seed_of,
    span_s,
)
from spotrun.forecast.lifetimes import Lifetime, Source, draw
from spotrun.forecast.measured import RunMeasurements
from spotrun.forecast.plan import NOTHING_MEASURED, Plan, affordable_of, asked
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.policy.pools import name_of
from spotrun.run.events import RunCreated
from spotrun.spec.model import RunSpec
from tests.support.world import TickMarket


class Lived(msgspec.Struct, frozen=True):
    """One lifetime, by the ticks and by the runner, in USD without storage and requests. None is never finished."""

    ticks_usd: float
    runner_usd: float
    ticks_finish_s: float | None
    runner_finish_s: float | None
    missed: bool


class ByRunner(msgspec.Struct, frozen=True):
    """
    The same lifetimes of one row of a forecast, by the ticks and by the runner.

    Costs are means, `usd_apart` is the mean of their difference in a lifetime, whatever its sign; so are times, of the
    lifetimes that both finished, None if there is none. `cost_inside` and `finish_inside` count the runner's that lie
    within P5 and P95 of the forecast, where nine of ten of the ticks' own do. `missed` is None without a deadline;
    `unfinished` ended before the work did, mostly for the budget.
    """

    strategy: str
    market: str
    lifetimes: int
    ticks_usd: float
    runner_usd: float
    usd_apart: float
    ticks_finish_s: float | None
    runner_finish_s: float | None
    finish_apart_s: float | None
    cost_inside: int
    finish_inside: int
    missed: int | None
    unfinished: int


class _Scene(msgspec.Struct, frozen=True):
    """The common input of all lifetimes."""

    spec: RunSpec
    offerings: tuple[Offering, ...]
    made_of: Inputs
    question: ForecastRequest
    source: Source
    seed: int
    bucket_region: str
    checkpoint_bytes: int


def by_runner(
    plan: Plan,
    spec: RunSpec,
    offerings: Sequence[Offering],
    lifetimes: int,
    *,
    measured: RunMeasurements = NOTHING_MEASURED,
    seed: int = 0,
    source: Source = GENERATED,
    created: RunCreated | None = None,
    progressed: Callable[[int, int], None] = lambda done, of: None,
) -> ByRunner:
    """
    Return the first lifetimes of the run's own rule, in all the markets that it may choose among.

    `plan` is the forecast of the other arguments.
    """
    made_of = asked(spec, offerings, plan.work, plan.time_left, measured, created)
    number = _own(spec, made_of.questions)
    told = spec.policy.model_copy(update={"expected_work": plan.work, "deadline": plan.time_left})
    scene = _Scene(
        spec=spec.model_copy(update={"policy": told}),
        offerings=tuple(affordable_of(spec, offerings)),
        made_of=made_of,
        question=made_of.questions[number],
        source=source,
        seed=seed,
        bucket_region="" if created is None else created.storage.region,
        checkpoint_bytes=measured.checkpoint_bytes or CHECKPOINT_BYTES,
    )
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        tasks = [pool.submit(_live, scene, each) for each in range(lifetimes)]
        for done, _ in enumerate(as_completed(tasks), 1):
            progressed(done, len(tasks))
    return _summary(plan.forecasts[number], [task.result() for task in tasks])


def _own(spec: RunSpec, questions: Sequence[ForecastRequest]) -> int:
    """Return the row of the run's own rule in the most markets; where it may have no spot, that is on-demand alone."""
    strategies = [question.strategy for question in questions]
    own = spec.policy.strategy if spec.policy.strategy in strategies else "on_demand_only"
    return max((len(question.market.pools), n) for n, question in enumerate(questions) if question.strategy == own)[1]


def _live(scene: _Scene, number: int) -> Lived:
    made_of, question, own = scene.made_of, scene.question, seed_of(scene.seed, number)
    job = made_of.job
    this_alone = msgspec.structs.replace(made_of, questions=(question,))
    ((by_ticks,),) = outcomes_of(this_alone, range(number, number + 1), scene.seed, scene.source)
    market = _market(scene, own)
    world = world_of(
        made_of.doubt.job(job, own),
        scene.spec,
        market,
        own,
        unbilled_s=made_of.standby.unbilled_s,
        later_start=made_of.standby.later_start,
        bucket_region=scene.bucket_region,
        checkpoint_bytes=scene.checkpoint_bytes,
    )
    result = world.run(HORIZON * span_s(job))
    paid_usd = float(result.instances_usd + result.egress_usd)
    return Lived(by_ticks.cost_usd, paid_usd, by_ticks.finished_s, result.finished_s, result.missed)


class GangMarket(TickMarket):
    """
    The market of a lifetime, in which a gang also loses members alone: in each tick with such a loss, one place of the
    pool is taken.
    """

    def __init__(
        self, lives: Lifetime, tick_s: float, spot: Mapping[str, Offering], on_demand: Sequence[Offering]
    ) -> None:
        super().__init__(list(lives), tick_s, spot, on_demand)
        self._lone = lives.lone_losses

    def taken_s(self, pool: Pool, at_s: float, place: int = 0) -> float:
        lost = self._lone.ticks.get(self._names.get(pool, ""), ())
        alone = (tick * self._tick_s for tick in lost if tick % self._lone.size == place)
        return min([super().taken_s(pool, at_s, place), *(moment for moment in alone if moment >= at_s)])


def _market(scene: _Scene, own: int) -> TickMarket:
    asked_of, job = scene.question.market, scene.made_of.job
    drawn = draw(asked_of, horizons(job)[1], job.tick_s, own, scene.source)
    named = {name_of(found.pool): found for found in scene.offerings if found.capacity_type is CapacityType.SPOT}
    of_one = msgspec.structs.replace(drawn, usd=drawn.usd / asked_of.size)
    return GangMarket(
        Lifetime(msgspec.structs.replace(asked_of, sending=()), of_one),
        job.tick_s,
        {pool: named[pool] for pool in asked_of.pools},
        [found for found in scene.offerings if found.capacity_type is CapacityType.ON_DEMAND],
    )


def _summary(row: Forecast, lived: Sequence[Lived]) -> ByRunner:
    ends = [
        (one.ticks_finish_s, one.runner_finish_s)
        for one in lived
        if one.ticks_finish_s is not None and one.runner_finish_s is not None
    ]
    return ByRunner(
        strategy=row.strategy,
        market=row.market,
        lifetimes=len(lived),
        ticks_usd=fmean(one.ticks_usd for one in lived),
        runner_usd=fmean(one.runner_usd for one in lived),
        usd_apart=fmean(abs(one.runner_usd - one.ticks_usd) for one in lived),
        ticks_finish_s=_mean([ticks_s for ticks_s, _ in ends]),
        runner_finish_s=_mean([runner_s for _, runner_s in ends]),
        finish_apart_s=_mean([abs(runner_s - ticks_s) for ticks_s, runner_s in ends]),
        cost_inside=sum(row.cost_p5_usd <= one.runner_usd <= row.cost_p95_usd for one in lived),
        finish_inside=sum(
            row.finish_p5_s <= one.runner_finish_s <= row.finish_p95_s
            for one in lived
            if one.runner_finish_s is not None
        ),
        missed=None if row.missed is None else sum(one.missed for one in lived),
        unfinished=sum(one.runner_finish_s is None for one in lived),
    )


def _mean(seconds: Sequence[float]) -> float | None:
    return fmean(seconds) if seconds else None
