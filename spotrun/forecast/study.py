"""
Simulates strategies to compare what they cost and how often they miss deadlines.

Each strategy is simulated with all combinations of recorded markets, job lengths, deadlines and changeovers. A recorded
market, or *record*, is a file that says at which ticks spot was available in which zones. A *tick* is a step of time;
all ticks of a record have the same length.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from math import ceil, isinf
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from spotrun.errors import SpotrunError
from spotrun.forecast.baselines import COMPARED
from spotrun.forecast.optimum import optimum
from spotrun.forecast.ticks import Ticks, on_demand_bill, simulate
from spotrun.forecast.traces import Windows, read_any
from spotrun.strategies.port import Job

OPTIMUM = "optimum"
"""
Name under which the minimum cost is listed next to the costs of the real strategies. Only a strategy that knew the
whole record in advance would reach this cost.
"""
WORKERS = 2
ENDINGS = (".npz", ".json", ".csv", ".txt")


class Case(msgspec.Struct, frozen=True, order=True):
    """
    A job and the zones in which it can run.

    `zones` is "all zones" if the job can use all zones of a recorded market, and "one zone" if it can use only one
    zone. In the second case, the job is simulated once for each zone.
    """

    zones: str
    work_s: float
    deadline_s: float
    changeover_s: float


class SimulatedJob(msgspec.Struct, frozen=True):
    """
    The result of one simulation: one job under one strategy, started at one time of a recorded market.

    `share` is the job's cost divided by its cost on on-demand alone. `losses` is None for the optimum, which is the
    schedule with the minimum cost: several schedules can have this cost and different numbers of losses.
    """

    case: Case
    strategy: str
    share: float
    missed: bool
    losses: int | None


class StrategyResult(msgspec.Struct, frozen=True):
    strategy: str
    case: Case
    cost_share: float
    misses: int
    losses: float | None
    trials: int


class Options(msgspec.Struct, frozen=True):
    """
    The scope of a study: the strategies, and the jobs with which each strategy is simulated.

    If a recorded market has no prices, the price of spot is the on-demand price divided by `price_ratio`. A recorded
    market is divided into windows. With `every` = n, the study uses only every n-th window. In each window, the study
    starts each job at up to `starts` different times.
    """

    strategies: tuple[str, ...]
    works_s: tuple[float, ...]
    deadlines_s: tuple[float, ...]
    changeovers_s: tuple[float, ...]
    on_demand_usd_per_hour: float = 3.06
    price_ratio: float = 3.0
    published_as: str = "skypilot"
    nodes: int = 1
    starts: int = 4
    every: int = 1


class RecordFacts(msgspec.Struct, frozen=True):
    """
    Facts about one recorded market.

    `up_share` is the share of the market's ticks in which spot was available. `polarity` says which numbers in the file
    stand for "available". `trials` is the number of jobs that were simulated in the market.
    """

    name: str
    zones: int
    windows: int
    tick_s: float
    up_share: float
    polarity: str
    trials: int


class Study(msgspec.Struct, frozen=True):
    """
    A finished study. `digest` is the sha256 of the results of all its simulations. So two studies of the same recorded
    markets, with the same options, should have the same digest.
    """

    records: tuple[RecordFacts, ...]
    rows: tuple[StrategyResult, ...]
    digest: str


def records_in(folder: Path) -> list[Path]:
    """
    Return the files below `folder` whose names have the endings of recorded markets. If `folder` is a file, return that
    file.

    Raises:
        SpotrunError: there is no such file.
    """
    found = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.suffix in ENDINGS)
    kept = [path for path in found if not path.name.lower().startswith(("license", "notice", "readme"))]
    if not kept:
        raise SpotrunError(f"no recorded market in {folder}", hint=f"a record's name ends in {', '.join(ENDINGS)}")
    return kept


def study(
    paths: Sequence[Path], options: Options, progressed: Callable[[int, int], None] = lambda done, of: None
) -> Study:
    """
    Simulate every strategy in every case on every recorded market.

    Raises:
        SpotrunError: a file is not a recorded market, or all recorded markets are shorter than the deadlines.
    """
    records = [(path, read(path, options)) for path in paths]
    pieces = [(path, window) for path, record in records for window in range(0, len(record.up), options.every)]
    trials: dict[int, list[SimulatedJob]] = {}
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        tasks = {pool.submit(trials_of, path, window, options): n for n, (path, window) in enumerate(pieces)}
        for done, task in enumerate(as_completed(tasks), 1):
            trials[tasks[task]] = task.result()
            progressed(done, len(tasks))
    all_trials = [trial for number in sorted(trials) for trial in trials[number]]
    if not all_trials:
        raise SpotrunError("no record is as long as the deadlines", hint="give a shorter --deadline")
    counts = Counter[Path]()
    for number, (path, _) in enumerate(pieces):
        counts[path] += len(trials[number])
    facts = tuple(_facts(path, record, counts[path]) for path, record in records)
    digest = hashlib.sha256(msgspec.json.encode(all_trials)).hexdigest()
    return Study(facts, tuple(_rows(all_trials)), digest)


def read(path: Path, options: Options) -> Windows:
    price = options.on_demand_usd_per_hour / options.price_ratio
    return read_any(path, options.published_as, options.nodes, price)


def _facts(path: Path, record: Windows, trials: int) -> RecordFacts:
    windows, _, zones = record.up.shape
    return RecordFacts(path.name, zones, windows, record.tick_s, float(record.up.mean()), record.polarity, trials)


def trials_of(path: Path, window: int, options: Options) -> list[SimulatedJob]:
    record = read(path, options)
    zones = range(len(record.zones))
    choices = {"one zone": [(zone,) for zone in zones]} | ({"all zones": [tuple(zones)]} if len(zones) > 1 else {})
    found: list[SimulatedJob] = []
    for name, sets in choices.items():
        for chosen in sets:
            market = record.ticks(window, chosen)
            for job, first in jobs(options, record.tick_s, len(market)):
                case = Case(name, job.work_s, job.deadline_s, job.changeover_s)
                found += (_trial(case, strategy, job, market, first) for strategy in options.strategies)
    return found


def _trial(case: Case, strategy: str, job: Job, market: Ticks, first: int) -> SimulatedJob:
    bill = on_demand_bill(job)
    if strategy == OPTIMUM:
        (least,) = optimum(job, market, [job.deadline_s], first)
        return SimulatedJob(case, strategy, least / bill, isinf(least), None)
    outcome = simulate(COMPARED[strategy], job, market, first)
    return SimulatedJob(case, strategy, outcome.cost_usd / bill, outcome.missed(job), outcome.losses)


def jobs(options: Options, tick_s: float, ticks: int) -> Iterator[tuple[Job, int]]:
    """
    Yield pairs of a job and the number of a tick at which a simulation starts this job. Each job is paired with up to
    `options.starts` ticks, which are spread evenly over the recorded market. The market has `ticks` ticks, and each job
    starts early enough for its deadline to be within the market.

    Leave out the jobs that would be late even on demand, and the jobs whose deadline is longer than the whole market.
    """
    for work_s, deadline_s, changeover_s in product(options.works_s, options.deadlines_s, options.changeovers_s):
        room = ticks - ceil(deadline_s / tick_s)
        if deadline_s < work_s + changeover_s or room < 0:
            continue
        job = Job(work_s, deadline_s, changeover_s, tick_s, options.on_demand_usd_per_hour)
        yield from ((job, int(first)) for first in np.unique(np.linspace(0, room, options.starts).astype(int)))


def _rows(trials: Sequence[SimulatedJob]) -> Iterator[StrategyResult]:
    grouped: dict[tuple[Case, str], list[SimulatedJob]] = {}
    for trial in trials:
        grouped.setdefault((trial.case, trial.strategy), []).append(trial)
    for (case, strategy), group in sorted(grouped.items(), key=lambda item: item[0][0]):
        yield StrategyResult(
            strategy=strategy,
            case=case,
            cost_share=fmean(trial.share for trial in group),
            misses=sum(trial.missed for trial in group),
            losses=None if strategy == OPTIMUM else fmean(trial.losses or 0 for trial in group),
            trials=len(group),
        )
