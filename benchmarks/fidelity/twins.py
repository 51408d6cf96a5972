"""The same job in the same recorded market, by the ticks and by the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import timedelta
from decimal import Decimal
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from benchmarks.fidelity.job import world_of
from spotrun.errors import SpotrunError
from spotrun.forecast.baselines import COMPARED
from spotrun.forecast.lifetime_forecast import HORIZON
from spotrun.forecast.study import WORKERS, Case, Options, jobs, read
from spotrun.forecast.ticks import Outcome, Ticks, on_demand_bill, simulate
from spotrun.offering import CapacityType, Offering
from spotrun.spec.model import RunSpec
from spotrun.strategies.port import Job
from tests.support.world import RunResult, SimulatedWorld, TickMarket
from tests.support.world.market import usd


class Twin(msgspec.Struct, frozen=True):
    """One job, by the ticks and by the runner. Costs are shares of the on-demand-only bill, without storage."""

    case: Case
    ticks_share: float
    runner_share: float
    ticks_finished_s: float | None
    runner_finished_s: float | None
    ticks_losses: int
    runner_losses: int
    trace_sha256: str

    @property
    def late_s(self) -> float | None:
        """Return how much later than the ticks the runner is done; None if one of them is not."""
        if self.ticks_finished_s is None or self.runner_finished_s is None:
            return None
        return self.runner_finished_s - self.ticks_finished_s


class Fidelity(msgspec.Struct, frozen=True):
    """
    All twins of one case. `cost_off` is how much the runner's share of the on-demand bill is above that of the ticks,
    `finish_off_s` how much later it is done: means, and the largest of any job, whatever its sign.
    """

    case: Case
    strategy: str
    jobs: int
    ticks_share: float
    runner_share: float
    cost_off: float
    cost_off_max: float
    finish_off_s: float
    finish_off_max_s: float
    ticks_late: int
    runner_late: int
    ticks_losses: float
    runner_losses: float


def fidelity(
    paths: Sequence[Path],
    options: Options,
    per_record: int,
    progressed: Callable[[int, int], None] = lambda done, of: None,
) -> list[Fidelity]:
    """
    Compare `per_record` jobs of each case on every record, spread over it, under the first strategy in `options`.

    Raises:
        SpotrunError: a file is no record, or none is as long as a deadline.
    """
    strategy = options.strategies[0]
    tasks = [(path, window, job, first) for path in paths for window, job, first in _chosen(path, options, per_record)]
    if not tasks:
        raise SpotrunError("no record is as long as the deadlines", hint="give a shorter --deadline")
    twins: dict[int, Twin] = {}
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        under_way = {pool.submit(_twin, *task, options, n): n for n, task in enumerate(tasks)}
        for done, each in enumerate(as_completed(under_way), 1):
            twins[under_way[each]] = each.result()
            progressed(done, len(tasks))
    ordered = sorted((twins[number] for number in sorted(twins)), key=lambda one: one.case)
    return [_summary(case, strategy, list(group)) for case, group in groupby(ordered, key=lambda one: one.case)]


def _chosen(path: Path, options: Options, per_record: int) -> Iterator[tuple[int, Job, int]]:
    """Windows and moments at which jobs start, as evenly as they come."""
    record = read(path, options)
    windows, ticks, _ = record.up.shape
    found = [(window, job, first) for window in range(windows) for job, first in jobs(options, record.tick_s, ticks)]
    found.sort(key=lambda one: (one[1].work_s, one[1].deadline_s, one[1].changeover_s))
    for _, group in groupby(found, key=lambda one: one[1]):
        of_case = list(group)
        numbers = np.unique(np.linspace(0, len(of_case) - 1, min(per_record, len(of_case))).round().astype(int))
        yield from (of_case[number] for number in numbers)


def _twin(path: Path, window: int, job: Job, first: int, options: Options, seed: int) -> Twin:
    record = read(path, options)
    market = record.ticks(window, tuple(range(len(record.zones))))[first:]
    by_ticks, by_runner = twins(market, record.zones, job, options.strategies[0], seed)
    bill = on_demand_bill(job)
    zones = "all zones" if len(record.zones) > 1 else "one zone"
    return Twin(
        case=Case(zones, job.work_s, job.deadline_s, job.changeover_s),
        ticks_share=by_ticks.cost_usd / bill,
        runner_share=float(by_runner.instances_usd) / bill,
        ticks_finished_s=by_ticks.finished_s,
        runner_finished_s=by_runner.finished_s,
        ticks_losses=by_ticks.losses,
        runner_losses=by_runner.losses,
        trace_sha256=by_runner.trace_sha256,
    )


def twins(market: Ticks, zones: Sequence[str], job: Job, strategy: str, seed: int) -> tuple[Outcome, RunResult]:
    """Return the outcome of a job by the ticks, and by the runner in a world of that seed."""
    world = _world(market, zones, job, strategy, seed)
    return simulate(COMPARED[strategy], job, market), world.run(HORIZON * job.deadline_s)


def _world(market: Ticks, zones: Sequence[str], job: Job, strategy: str, seed: int) -> SimulatedWorld:
    """Return the world of the job as a run that knows its expected work."""
    on_demand = usd(job.on_demand_usd_per_hour)
    spec = RunSpec.from_dict(
        {
            "name": "simulated",
            "workdir": "/",
            "train": {"run": "true"},
            "policy": {
                "deadline": timedelta(seconds=job.deadline_s),
                "strategy": strategy,
                "expected_work": timedelta(seconds=job.work_s),
            },
        }
    )
    offered = TickMarket(
        market,
        job.tick_s,
        {zone: _offering(zone, CapacityType.SPOT, on_demand) for zone in zones},
        [_offering(zone, CapacityType.ON_DEMAND, on_demand) for zone in zones],
    )
    return world_of(job, spec, offered, seed)


def _offering(zone: str, kind: CapacityType, usd_per_hour: Decimal) -> Offering:
    return Offering(
        cloud="local",
        region="recorded",
        zone=zone,
        instance_type="recorded",
        capacity_type=kind,
        price_usd_per_hour=usd_per_hour,
        simulated=True,
    )


def _summary(case: Case, strategy: str, found: list[Twin]) -> Fidelity:
    off = [one.runner_share - one.ticks_share for one in found]
    late = [one.late_s for one in found if one.late_s is not None] or [0.0]
    return Fidelity(
        case=case,
        strategy=strategy,
        jobs=len(found),
        ticks_share=fmean(one.ticks_share for one in found),
        runner_share=fmean(one.runner_share for one in found),
        cost_off=fmean(off),
        cost_off_max=max(off, key=abs),
        finish_off_s=fmean(late),
        finish_off_max_s=max(late, key=abs),
        ticks_late=sum(_late(one.ticks_finished_s, case) for one in found),
        runner_late=sum(_late(one.runner_finished_s, case) for one in found),
        ticks_losses=fmean(one.ticks_losses for one in found),
        runner_losses=fmean(one.runner_losses for one in found),
    )


def _late(finished_s: float | None, case: Case) -> bool:
    return finished_s is None or finished_s > case.deadline_s + 1e-3
