"""
Forecasts when a job will end and what it will cost, by simulating it many times with the strategies of real runs.

Each simulated run of the job is called a *lifetime*, and has its own market.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from math import ceil, inf, isfinite
from multiprocessing import get_context

import msgspec
import numpy as np

from spotrun.forecast.lifetimes import STANDBY, Generated, Lifetime, Source, SpotPools, draw, standby_of
from spotrun.forecast.ticks import Outcome, Standby, simulate
from spotrun.strategies.catalogue import STRATEGIES
from spotrun.strategies.patient import Patient
from spotrun.strategies.port import Job

HORIZON = 2.0
"""A lifetime is given up after this multiple of `span_s`."""
SPAN = 4.0
"""
The `span_s` of a job without a deadline, as a multiple of the time that its work and one changeover take together.
"""
MOSTLY = 1.5
"""
Length of the market that is drawn first, as a multiple of the time that the work and one changeover take together. Most
lifetimes end within this market. If a lifetime takes longer, a longer market is drawn with the same seed. The longer
market begins exactly like the shorter market, so the result does not depend on this length.
"""
TICKS = 120
"""
Number of decisions in the planned time. More decisions would change the result only a little, because the strategy
never reacts late to a loss: in the simulation, instances are lost only at the time of a decision.
"""
TICK_MAX_S = 600.0
GENERATED = Generated()
CHUNK = 25
WORKERS = 2


def tick_for(time_s: float) -> float:
    """Return the seconds between two decisions in a lifetime that is planned to take `time_s`."""
    return min(TICK_MAX_S, time_s / TICKS)


def span_s(job: Job) -> float:
    """Return the seconds until the deadline. Without a deadline, return SPAN * (time for the work + one changeover)."""
    return job.deadline_s if isfinite(job.deadline_s) else SPAN * (job.work_s + job.changeover_s)


class ForecastRequest(msgspec.Struct, frozen=True):
    """A row of a forecast. The decisions are made by `rule`, or, if it is None, by the strategy named `strategy`."""

    strategy: str
    market: SpotPools
    rule: Patient | None = None


class JobUncertainty(msgspec.Struct, frozen=True):
    """
    The uncertainty of a job's figures. Each lifetime draws its true figures at random within these limits.

    The true work differs from the estimate by at most `work_share` of the estimate, in either direction. All
    changeovers of a lifetime take the same time. This time is one of the measured `changeovers_s` (the job's estimate
    if none was measured), multiplied or divided by a factor of at most `changeover_factor`.
    """

    work_share: float = 0.0
    changeovers_s: tuple[float, ...] = ()
    changeover_factor: float = 1.0

    def job(self, job: Job, seed: int) -> Job:
        """Return the job with the figures that are true in one lifetime. They are drawn at random."""
        rng = np.random.default_rng((seed, 2))
        changeover_s = float(rng.choice(self.changeovers_s or (job.changeover_s,)))
        factor, share = self.changeover_factor ** rng.uniform(-1, 1), 1 + self.work_share * rng.uniform(-1, 1)
        return msgspec.structs.replace(job, work_s=job.work_s * share, changeover_s=changeover_s * factor)

    def believed(self, job: Job) -> Job:
        """
        Return the job with the duration of changeovers that its strategy assumes. To be safe, this is longer than the
        expected duration, as in a real run.
        """
        return msgspec.structs.replace(job, changeover_s=job.changeover_s * self.changeover_factor)


class Forecast(msgspec.Struct, frozen=True):
    """
    The result of all lifetimes together, in USD and seconds. A lifetime that was given up counts as infinitely long.

    `budget_passed` and `missed` are probabilities; None if the job has no budget or no deadline. `interruptions` and
    the seconds of downtime are means.
    """

    strategy: str
    market: str
    lifetimes: int
    cost_mean_usd: float
    cost_p5_usd: float
    cost_p50_usd: float
    cost_p95_usd: float
    finish_p5_s: float
    finish_p50_s: float
    finish_p95_s: float
    missed: float | None
    budget_passed: float | None
    interruptions: float
    changeover_s: float
    rework_s: float
    waiting_s: float


class Inputs(msgspec.Struct, frozen=True):
    """
    The input of a forecast: its rows (`questions`), the job as it is known before it runs, and the conditions of its
    lifetimes. `standby` has the rules for replacements. Its field `warned` is ignored: in each lifetime, it is decided
    at random which losses have a notice.
    """

    questions: tuple[ForecastRequest, ...]
    job: Job
    rework_s: float
    doubt: JobUncertainty = JobUncertainty()
    standby: Standby = STANDBY


def forecast(
    asked: Inputs,
    lifetimes: int,
    *,
    budget_usd: float | None = None,
    seed: int = 0,
    source: Source = GENERATED,
    progressed: Callable[[int, int], None] = lambda done, of: None,
) -> list[Forecast]:
    """
    Return one forecast for each of `asked.questions`, in the same order.

    For each lifetime, one market is drawn and used for all questions. It has the pools of the question that has the
    most pools, so all other questions must use a subset of these pools. The same seed gives the same markets.
    """
    outcomes: list[list[Outcome]] = [[] for _ in asked.questions]
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        tasks = [pool.submit(outcomes_of, asked, lives, seed, source) for lives in _chunks(lifetimes)]
        for done, _ in enumerate(as_completed(tasks), 1):
            progressed(done, len(tasks))
    for task in tasks:
        for found, more in zip(outcomes, task.result(), strict=True):
            found += more
    return [summary(*each, asked.job, budget_usd) for each in zip(asked.questions, outcomes, strict=True)]


def _chunks(lifetimes: int) -> list[range]:
    return [range(first, min(first + CHUNK, lifetimes)) for first in range(0, lifetimes, CHUNK)]


def outcomes_of(asked: Inputs, lifetimes: range, seed: int, source: Source) -> list[list[Outcome]]:
    """Return the outcomes of these lifetimes for each question."""
    questions, job, doubt = asked.questions, asked.job, asked.doubt
    widest = max((question.market for question in questions), key=lambda market: len(market.pools))
    columns = [[widest.pools.index(pool) for pool in question.market.pools] for question in questions]
    rules = [question.rule or STRATEGIES[question.strategy] for question in questions]
    found: list[list[Outcome]] = [[] for _ in questions]
    for own in (seed_of(seed, number) for number in lifetimes):
        drawn = cache(partial(draw, widest, tick_s=job.tick_s, seed=own, source=source))
        real, ready = doubt.job(job, own), standby_of(asked.standby, own)
        for number, question in enumerate(questions):
            markets = (Lifetime(question.market, drawn(ticks).only(columns[number])) for ticks in horizons(job))
            lives = (
                simulate(
                    rules[number],
                    real,
                    market,
                    rework_s=asked.rework_s,
                    standby=ready,
                    believed=doubt.believed(real),
                    tolls=question.market.tolls,
                    lone_losses=market.lone_losses,
                )
                for market in markets
            )
            outcome = next(lives)
            found[number].append(outcome if outcome.finished_s is not None else next(lives))
    return found


def seed_of(seed: int, number: int) -> int:
    """Return the seed with which the market, the uncertain figures and the notices of one lifetime are drawn."""
    return seed * 1_000_003 + number


def horizons(job: Job) -> tuple[int, int]:
    """
    Return two lengths for the drawn markets, in ticks. Most lifetimes end within the first; a lifetime that reaches the
    end of the second is given up.
    """
    whole_s, mostly_s = HORIZON * span_s(job), MOSTLY * (job.work_s + job.changeover_s)
    return ceil(min(whole_s, mostly_s) / job.tick_s), ceil(whole_s / job.tick_s)


def summary(question: ForecastRequest, outcomes: Sequence[Outcome], job: Job, budget_usd: float | None) -> Forecast:
    costs = np.array([outcome.cost_usd for outcome in outcomes])
    ends = np.array([inf if outcome.finished_s is None else outcome.finished_s for outcome in outcomes])
    p5, p50, p95 = (float(cost) for cost in np.quantile(costs, [0.05, 0.5, 0.95]))
    finish = [float(np.quantile(ends, share, method="higher")) for share in (0.05, 0.5, 0.95)]
    horizon_s = HORIZON * span_s(job)
    waits = [
        (outcome.finished_s or horizon_s)
        - outcome.changeover_s
        - outcome.on_demand_progress_s
        - outcome.spot_progress_s
        for outcome in outcomes
    ]
    return Forecast(
        strategy=question.strategy,
        market=question.market.name,
        lifetimes=len(outcomes),
        cost_mean_usd=float(costs.mean()),
        cost_p5_usd=p5,
        cost_p50_usd=p50,
        cost_p95_usd=p95,
        finish_p5_s=finish[0],
        finish_p50_s=finish[1],
        finish_p95_s=finish[2],
        missed=float(np.mean([outcome.missed(job) for outcome in outcomes])) if isfinite(job.deadline_s) else None,
        budget_passed=None if budget_usd is None else float((costs > budget_usd).mean()),
        interruptions=float(np.mean([outcome.losses for outcome in outcomes])),
        changeover_s=float(np.mean([outcome.changeover_s for outcome in outcomes])),
        rework_s=float(np.mean([outcome.rework_s for outcome in outcomes])),
        waiting_s=float(np.mean(waits)),
    )
