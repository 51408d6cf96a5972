"""
What a job will probably come to: many simulated lifetimes of it, decided by the strategies that production asks.

A *lifetime* is the job in one market of its own. Markets are drawn from recorded windows, or generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from math import ceil, inf
from multiprocessing import get_context

import msgspec
import numpy as np

from spotrun.simulation.generator import generate
from spotrun.simulation.ticks import Outcome, Ticks, simulate
from spotrun.simulation.traces import Windows
from spotrun.strategies.catalogue import STRATEGIES
from spotrun.strategies.port import Job

HORIZON = 2.0
"""A lifetime is given up at so many times its deadline."""
TICKS = 120
"""Decisions until the deadline; a loss falls on one, so more of them say little more."""
TICK_MAX_S = 600.0
CHUNK = 50
WORKERS = 2


class Market(msgspec.Struct, frozen=True):
    """Some spot pools to choose among: their names, regions and prices (USD per hour), in the order of asking."""

    name: str
    pools: tuple[str, ...]
    regions: tuple[str, ...]
    prices: tuple[float, ...]


def tick_for(deadline_s: float) -> float:
    return min(TICK_MAX_S, deadline_s / TICKS)


class Question(msgspec.Struct, frozen=True):
    """One row of a forecast."""

    strategy: str
    market: Market


class Forecast(msgspec.Struct, frozen=True):
    """
    The answer: over all lifetimes, in USD and seconds. A lifetime that never finished counts as endless.

    `budget_passed` and `missed` are probabilities; `interruptions` and the seconds of downtime are means.
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
    missed: float
    budget_passed: float | None
    interruptions: float
    changeover_s: float
    rework_s: float
    waiting_s: float


def forecast(
    questions: Sequence[Question],
    job: Job,
    rework_s: float,
    lifetimes: int,
    *,
    budget_usd: float | None = None,
    seed: int = 0,
    record: Windows | None = None,
    progressed: Callable[[int, int], None] = lambda done, of: None,
) -> list[Forecast]:
    """One forecast per question, in their order. The same seed gives every question the same markets."""
    outcomes: dict[int, list[Outcome]] = {number: [] for number in range(len(questions))}
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        tasks = {
            pool.submit(_chunk, question, job, rework_s, chunk, seed, record): number
            for number, question in enumerate(questions)
            for chunk in _chunks(1 if question.strategy == "on_demand_only" else lifetimes)
        }
        for done, task in enumerate(as_completed(tasks), 1):
            outcomes[tasks[task]] += task.result()
            progressed(done, len(tasks))
    return [summary(question, job, outcomes[number], budget_usd) for number, question in enumerate(questions)]


def _chunks(lifetimes: int) -> list[range]:
    """On demand one lifetime is like another."""
    return [range(first, min(first + CHUNK, lifetimes)) for first in range(0, lifetimes, CHUNK)]


def _chunk(
    question: Question, job: Job, rework_s: float, lifetimes: range, seed: int, record: Windows | None
) -> list[Outcome]:
    strategy = STRATEGIES[question.strategy]
    markets = (lifetime_market(question.market, job, seed, number, record) for number in lifetimes)
    return [simulate(strategy, job, market, rework_s=rework_s) for market in markets]


def lifetime_market(market: Market, job: Job, seed: int, number: int, record: Windows | None = None) -> Ticks:
    """The market of one lifetime: availability drawn for it alone, at the pools' prices of now."""
    ticks = ceil(HORIZON * job.deadline_s / job.tick_s)
    own = seed * 1_000_003 + number
    if not market.pools:
        return [{}] * ticks
    up = generate(market.regions, ticks, job.tick_s, own) if record is None else _drawn(record, market, ticks, job, own)
    return list(_priced(market, up))


def _drawn(record: Windows, market: Market, ticks: int, job: Job, seed: int) -> np.ndarray:
    """
    Recorded windows from random moments on, one after another: zones for pools, at the same moments.

    Where there are more pools than zones, those beyond have a zone's availability at other moments.
    """
    zones = len(record.zones)
    columns = [_stretch(record, pool % zones, ticks, job, (seed, pool // zones)) for pool in range(len(market.pools))]
    return np.stack(columns, axis=1)


def _stretch(record: Windows, zone: int, ticks: int, job: Job, seed: tuple[int, int]) -> np.ndarray:
    dice = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    length = 0
    while length < ticks:
        window = record.up[int(dice.integers(len(record.up))), :, zone]
        moments = np.arange(int(dice.integers(len(window))) * record.tick_s, len(window) * record.tick_s, job.tick_s)
        parts.append(window[(moments / record.tick_s).astype(int)])
        length += len(moments)
    return np.concatenate(parts)[:ticks]


def _priced(market: Market, up: np.ndarray) -> Iterator[dict[str, float]]:
    for here in up.tolist():
        yield {pool: usd for pool, usd, has in zip(market.pools, market.prices, here, strict=True) if has}


def summary(question: Question, job: Job, outcomes: Sequence[Outcome], budget_usd: float | None) -> Forecast:
    """The outcomes of one question as figures."""
    costs = np.array([outcome.cost_usd for outcome in outcomes])
    ends = np.array([inf if outcome.finished_s is None else outcome.finished_s for outcome in outcomes])
    p5, p50, p95 = (float(cost) for cost in np.quantile(costs, [0.05, 0.5, 0.95]))
    finish = [float(np.quantile(ends, share, method="higher")) for share in (0.05, 0.5, 0.95)]
    horizon_s = HORIZON * job.deadline_s
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
        missed=float(np.mean([outcome.missed(job) for outcome in outcomes])),
        budget_passed=None if budget_usd is None else float((costs > budget_usd).mean()),
        interruptions=float(np.mean([outcome.losses for outcome in outcomes])),
        changeover_s=float(np.mean([outcome.changeover_s for outcome in outcomes])),
        rework_s=float(np.mean([outcome.rework_s for outcome in outcomes])),
        waiting_s=float(np.mean(waits)),
    )
