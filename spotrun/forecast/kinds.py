"""
Forecasts a job that can use several kinds of instances, by simulating it many times. Each simulated run is called a
lifetime. Some lifetimes are allowed to use all kinds, and others only one kind, so that the results can be compared.
The policy of real runs makes the decisions in each lifetime.

For each lifetime, the true speed of every kind is drawn at random. It is between one third of the kind's published
speed and three times that speed (`spotrun.policy.throughput`). The policy knows only the published speed, so the
simulated run has to measure the true speed, as a real run does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import timedelta
from math import exp, log
from multiprocessing import get_context

import msgspec
import numpy as np

from spotrun.forecast.lifetime_forecast import (
    SPAN,
    TICKS,
    WORKERS,
    Forecast,
    ForecastRequest,
    Inputs,
    seed_of,
    span_s,
    summary,
)
from spotrun.forecast.lifetimes import Source, SpotPools, draw, standby_of
from spotrun.forecast.simulated_run import LifeOutcome, SimulatedRun, Truth
from spotrun.market.wishes import is_of, kind_among
from spotrun.market.world import World
from spotrun.offering import CapacityType, Offering
from spotrun.policy.facts import Facts
from spotrun.policy.pools import name_of
from spotrun.policy.throughput import PUBLISHED_DOUBT, speeds
from spotrun.run import fold
from spotrun.run.events import Entry, RunCreated
from spotrun.spec.kinds import AnyOf, Kind, NamedType
from spotrun.spec.model import RunSpec

LIFETIMES_MAX = 100
"""
Maximum number of lifetimes. It is small because each lifetime takes a third of a second to simulate. That is slow,
because the policy of real runs makes the decisions.
"""
LOOK_MAX_S = 300.0
CHUNK = 5
ALL = "all types"


class ForecastRow(msgspec.Struct, frozen=True):
    """
    A row of the forecast: the job with a set of offerings. A simulated run is given up if it has not ended after
    `given_up_s` seconds of simulated time.
    """

    strategy: str
    market: str
    spec: RunSpec
    offerings: tuple[Offering, ...]
    given_up_s: float


class Choice(msgspec.Struct, frozen=True):
    """
    The rows of the forecast (`ways`), and the input that all rows share. `times` has the expected speed of each kind,
    as a multiple of the first kind's speed. `types` maps each instance type to its kind.
    """

    ways: tuple[ForecastRow, ...]
    asked: Inputs
    created: RunCreated
    times: dict[str, float]
    types: dict[str, str]
    checkpoint_bytes: int


class Share(msgspec.Struct, frozen=True):
    """A kind, and the share of the lifetimes in which it did most of the work."""

    kind: str
    share: float


def forecast_of_kinds(
    choice: Choice,
    lifetimes: int,
    *,
    budget_usd: float | None,
    seed: int,
    source: Source,
    progressed: Callable[[int, int], None],
) -> tuple[list[Forecast], tuple[Share, ...]]:
    """
    Return a forecast for each row. Also return the kinds that will probably do most of the work, with the most probable
    kind first. All rows are simulated with the same markets and speeds.
    """
    found: list[list[LifeOutcome]] = [[] for _ in choice.ways]
    lives = range(min(lifetimes, LIFETIMES_MAX))
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        chunks = [lives[first : first + CHUNK] for first in range(0, len(lives), CHUNK)]
        tasks = [pool.submit(lived_by, choice, chunk, seed, source) for chunk in chunks]
        for done, _ in enumerate(as_completed(tasks), 1):
            progressed(done, len(tasks))
    for task in tasks:
        for lived, more in zip(found, task.result(), strict=True):
            lived += more
    rows = [
        summary(
            ForecastRequest(way.strategy, SpotPools(way.market, (), (), ())),
            [each.outcome for each in lived],
            choice.asked.job,
            budget_usd,
        )
        for way, lived in zip(choice.ways, found, strict=True)
    ]
    return rows, _shares(choice, found[0])


def lived_by(choice: Choice, lifetimes: Sequence[int], seed: int, source: Source) -> list[list[LifeOutcome]]:
    """Simulate the lifetimes whose numbers are in `lifetimes`. Return the results of each row."""
    pools = _pools([each for way in choice.ways for each in way.offerings])
    found: list[list[LifeOutcome]] = [[] for _ in choice.ways]
    for own in (seed_of(seed, number) for number in lifetimes):
        truth_s = _work_s(choice, own)
        job = choice.asked.job
        drawn = draw(pools, round(SPAN * TICKS), job.tick_s, own, source)
        real = choice.asked.doubt.job(job, own)
        for rows, way in zip(found, choice.ways, strict=True):
            truth = Truth(
                work_s=truth_s,
                changeover_s=real.changeover_s,
                interval_s=2 * choice.asked.rework_s,
                standby=standby_of(choice.asked.standby, own),
                checkpoint_bytes=choice.checkpoint_bytes,
                given_up_s=way.given_up_s,
            )
            look_s = min(LOOK_MAX_S, job.tick_s)
            life = SimulatedRun(way.spec, choice.created, way.offerings, pools.pools, drawn, job.tick_s, truth, look_s)
            rows.append(life.live())
    return found


def _pools(offerings: Sequence[Offering]) -> SpotPools:
    spot = {name_of(each.pool): each for each in offerings if each.capacity_type is CapacityType.SPOT}
    prices = tuple(float(each.price_usd_per_hour) for each in spot.values())
    return SpotPools(ALL, tuple(spot), tuple(each.region for each in spot.values()), prices)


def _work_s(choice: Choice, seed: int) -> dict[str, float]:
    """
    Draw the true speeds of one lifetime. Return the seconds that the whole work takes on each instance type. On the
    first kind, this is the job's estimated work, varied at random within the uncertainty of the estimate.
    """
    rng = np.random.default_rng((seed, 4))
    off = {kind: log(PUBLISHED_DOUBT) * float(rng.uniform(-1, 1)) for kind in choice.times}
    first = next(iter(choice.times))
    share = 1 + choice.asked.doubt.work_share * float(rng.uniform(-1, 1))
    true = {kind: times * exp(off[kind] - off[first]) for kind, times in choice.times.items()}
    return {name: choice.asked.job.work_s * share / true[kind] for name, kind in choice.types.items()}


def _shares(choice: Choice, lived: Sequence[LifeOutcome]) -> tuple[Share, ...]:
    counts: dict[str, int] = {}
    for each in lived:
        done: dict[str, float] = {}
        for name, share in each.shares.items():
            done[choice.types[name]] = done.get(choice.types[name], 0.0) + share
        if done:
            most = max(done, key=done.__getitem__)
            counts[most] = counts.get(most, 0) + 1
    ranked = sorted(counts, key=counts.__getitem__, reverse=True)
    return tuple(Share(kind, counts[kind] / len(lived)) for kind in ranked)


def choice_of(
    spec: RunSpec,
    offerings: Sequence[Offering],
    asked: Inputs,
    created: RunCreated,
    strategy: str,
    checkpoint_bytes: int,
) -> Choice:
    """
    Return the input of a forecast. The forecast has a row for all kinds together, a row for each kind alone, and a row
    for all kinds on demand only. The first two sorts of rows use `strategy`.
    """
    kinds = [kind for kind in spec.resources.kinds if any(is_of(each, kind) for each in offerings)]
    times = _believed(spec, offerings, created)
    slower = PUBLISHED_DOUBT**2
    longest = {kind: SPAN * slower * asked.job.work_s / times[kind] + span_s(asked.job) for kind in kinds}
    of = {kind: tuple(each for each in offerings if kind_among(each, kinds) == kind) for kind in kinds}
    ways = [ForecastRow(strategy, ALL, spec, tuple(offerings), max(longest.values()))]
    ways += [
        ForecastRow(strategy, f"{kind} alone", _alone(spec, kind, times[kind]), of[kind], longest[kind])
        for kind in kinds
    ]
    if spec.resources.spot_policy == "auto" and strategy != "on_demand_only":
        resources = spec.resources.model_copy(update={"spot_policy": "on-demand"})
        dear = tuple(each for each in offerings if each.capacity_type is CapacityType.ON_DEMAND)
        only = spec.model_copy(update={"resources": resources})
        ways += [ForecastRow("on_demand_only", ALL, only, dear, max(longest.values()))] if dear else []
    types = {each.instance_type: str(kind_among(each, kinds)) for each in offerings}
    named = {str(kind): times[kind] for kind in kinds}
    return Choice(tuple(ways), asked, created, named, types, checkpoint_bytes)


def _believed(spec: RunSpec, offerings: Sequence[Offering], created: RunCreated) -> Mapping[Kind, float]:
    born = fold.begin(Entry(number=0, run=created.uid, nonce="", at=created.clock_epoch, writer="", event=created))
    facts = Facts.at_birth(born, spec, World(offerings=tuple(offerings), instances=()))
    return {kind: speed.times for kind, speed in speeds(facts).items()}


def _alone(spec: RunSpec, kind: Kind, times: float) -> RunSpec:
    """Return the job with only this kind, and with the expected work on this kind."""
    named = AnyOf((kind,)) if isinstance(kind, NamedType) else kind
    resources = spec.resources.model_copy(update={"accelerators": named})
    expected = spec.policy.expected_work
    told = None if expected is None else timedelta(seconds=expected.total_seconds() / times)
    policy = spec.policy.model_copy(update={"expected_work": told})
    return spec.model_copy(update={"resources": resources, "policy": policy})
