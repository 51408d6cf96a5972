"""
Prepares the forecast that `spotrun plan` shows for a job. It is based on spot prices and on the measurements of earlier
runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.clock import system_clock
from spotrun.clouds.local.config import market_config
from spotrun.clouds.registry import clock_of, cloud_of
from spotrun.errors import LedgerDamaged, SpecInvalid, StoreError
from spotrun.folder.bench_record import BenchResult, benched, benched_otherwise, digest_of
from spotrun.forecast.lifetimes import Generated, Local, Recorded, Replayed, Source
from spotrun.forecast.measured import RunMeasurements, measured
from spotrun.forecast.plan import Plan, learns
from spotrun.forecast.plan import plan as forecast_of
from spotrun.forecast.traces import AVAILABLE, read_any
from spotrun.market.world import World
from spotrun.offering import CapacityType, Offering
from spotrun.policy.deadline import deadline_at, unreachable
from spotrun.policy.explain import considered
from spotrun.policy.pools import name_of
from spotrun.policy.throughput import BENCH_DOUBT, of_first_choice
from spotrun.run.events import RunCreated
from spotrun.run.state import RunState
from spotrun.runs.first_look import look_at_market, quotes_of, readable_store
from spotrun.runs.flags import known_word
from spotrun.runs.open_run import OpenRun, absent, default_store, ours_first, runs_in
from spotrun.spec.file import load_spec
from spotrun.spec.model import RunSpec
from spotrun.spec.varied_arguments import unvaried
from spotrun.store.opening import open_store

RUNS_MAX = 10
"""Maximum number of earlier runs with the job's name that are read: those known on this machine, then the newest."""


class PlannedJob(NamedTuple):
    plan: Plan
    spec: RunSpec
    offerings: Sequence[Offering]
    created: RunCreated | None
    measured: RunMeasurements
    source: Source
    notes: Sequence[str] = ()
    """
    Notes for the user about `spotrun bench`: which figures of the forecast it has measured, or that it has measured
    this job only with other arguments.
    """


def planned(
    spec_path: Path,
    overrides: Mapping[str, object],
    store: str | None,
    *,
    arguments: Sequence[str] = (),
    traces: Path | None = None,
    published_as: str = "skypilot",
    price_history: bool = False,
    lifetimes: int,
    seed: int,
    progressed: Callable[[int, int], None],
) -> PlannedJob:
    """
    Return the forecast of the job in the file `spec_path`, with the values in `overrides` changed. The forecast uses
    the measurements of the runs and benches in `store`.

    Raises:
        SpecInvalid: the job cannot be forecast, no offering suits it, or all suitable offerings now cost more than
            max_price.
        CloudError: the cloud offers nothing in the regions and zones that the job names.
    """
    spec = load_spec(spec_path, dict(overrides), store or default_store(), arguments)
    known, notes = _with_bench(_measured(spec, store), spec, spec_path, store)
    expected = spec.policy.expected_work or known.work
    if expected is None:
        if notes:
            raise SpecInvalid("the training time of this job is not known", hint=f"{notes[0]}; or give --work 3h")
        hint = "add --work 3h, or set policy.expected_work; or first complete a run of this name or a `spotrun bench`"
        raise SpecInvalid("the training time of this job is not known", hint=hint)
    now = system_clock().now()
    time_left = None if spec.policy.deadline is None else deadline_at(spec.policy.deadline, now) - now
    policy = spec.policy.model_copy(update={"expected_work": expected})
    told = spec.model_copy(update={"policy": policy})
    late = None if time_left is None else unreachable(told, time_left)
    if late is not None:
        raise SpecInvalid(late, hint="give a later deadline")
    market = look_at_market(told, cloud_of(told), readable_store(store or spec.checkpoint.uri))
    market.require_any()
    source = _source(spec, market.world, traces, published_as, price_history)
    ranked = considered(market.facts)
    first = ranked[0].offering
    offerings, times = (market.world.offerings, 1.0) if learns(spec) else of_first_choice(market.facts, first)
    found = forecast_of(
        spec,
        offerings,
        expected / times,
        time_left,
        lifetimes,
        epochs=known.epochs if spec.policy.expected_work is None else None,
        measured=known,
        seed=seed,
        source=source,
        considered=ranked,
        created=market.unborn.created,
        progressed=progressed,
    )
    return PlannedJob(found, spec, offerings, market.unborn.created, known, source, notes)


def _measured(spec: RunSpec, store: str | None) -> RunMeasurements:
    """
    Return the measurements of runs that have the job's name (at most RUNS_MAX).

    Raises:
        StoreError: the store cannot be read, and the job does not set `policy.expected_work`.
    """
    folder = store or spec.checkpoint.uri
    if absent(folder):
        return RunMeasurements()
    try:
        runs = [run for run in runs_in(folder) if run.created.name == spec.name]
        return measured(_states(ours_first(runs)[:RUNS_MAX]))
    except StoreError:
        if spec.policy.expected_work is None:
            raise
        return RunMeasurements()


def _states(runs: Iterable[OpenRun]) -> Iterator[RunState]:
    """Yield the states of the runs that are not damaged. Another writer may have put a damaged one there."""
    for run in runs:
        with suppress(LedgerDamaged):
            yield run.ledger.refresh()


def _with_bench(
    known: RunMeasurements, spec: RunSpec, spec_path: Path, store: str | None
) -> tuple[RunMeasurements, list[str]]:
    """
    Add the figures that are missing in `known`, the measurements of earlier runs, if `spotrun bench` has measured them
    on the job's first kind of instances. Return the result, and notes for the user about the added figures.

    Raises:
        StoreError: the store cannot be read, and the duration of the work is not known from elsewhere.
    """
    folder, needs_work = store or spec.checkpoint.uri, not (spec.policy.expected_work or known.work)
    if absent(folder) or not spec.resources.kinds or not (needs_work or not known.changeovers_s):
        return known, []
    kind = str(spec.resources.kinds[0])
    try:
        runs = open_store(folder)
        found = benched(runs, spec).get(kind)
        if found is None:
            other = benched_otherwise(runs, spec.name, digest_of(unvaried(spec)), kind)
            return known, [] if other is None else [_said_of_another(other, spec_path)]
    except StoreError:
        if needs_work:
            raise
        return known, []
    told: list[str] = []
    if needs_work and found.work_s is not None:
        work = timedelta(seconds=found.work_s * clock_of(spec).scale)
        doubt = max(BENCH_DOUBT, found.doubt)
        known = replace(known, work=work, work_doubt=doubt)
        told.append(f"how long the work is (within {doubt:.0%})")
    if not known.changeovers_s and found.start_s is not None:
        known = replace(known, changeovers_s=(_start_s(found, found.start_s, spec),), by_bench=True)
        told.append("how long a start takes")
    on = f"measured on {found.at:%Y-%m-%d}, by the bench {found.run}"
    return known, [f"{' and '.join(told)} was {on}"] if told else []


def _start_s(found: BenchResult, measured_s: float, spec: RunSpec) -> float:
    """
    Return the duration of a changeover of this job, in seconds of run time. `measured_s`, the duration that the bench
    measured in system time, includes the boot of the bench's instance. This boot time is replaced by the one that the
    job expects.
    """
    return measured_s * clock_of(spec).scale + spec.boot.total_seconds() - found.usual_boot_s


def _said_of_another(found: BenchResult, spec_path: Path) -> str:
    """
    Return a note about a bench that measured the job with other arguments: its date, and how to get a forecast for
    those arguments.
    """
    said = f"the bench of {found.at:%Y-%m-%d} trained with {found.otherwise or 'other arguments'}"
    if found.command:
        return f"{said}: to use it, set train: {{run: {found.command!r}}} in the job"
    return f"{said}: `{shlex.join(['spotrun', 'plan', str(spec_path), '--', *found.args])}` uses it"


def _source(spec: RunSpec, world: World, traces: Path | None, published_as: str, price_history: bool) -> Source:
    """
    Return the source of the markets.

    Raises:
        SpecInvalid: more than one flag names a source, a flag names an unknown format, or a flag requests recent prices
        that are not known.
    """
    if traces is not None and price_history:
        raise SpecInvalid("the record given with --traces already has prices", hint="leave out --price-history")
    known_word("--published-as", published_as, AVAILABLE)
    if traces is not None:
        return Recorded(traces.name, read_any(traces, published_as, spec.num_nodes, 1.0))
    if price_history:
        return _price_history(spec, world)
    return Local(market_config(spec.local)) if spec.local.market == "generated" else Generated()


def _price_history(spec: RunSpec, world: World) -> Source:
    found = quotes_of(spec, world.offerings)
    histories = {
        name_of(quote.offering.pool): quote.history
        for quote in found.quotes
        if quote.offering.capacity_type is CapacityType.SPOT and quote.history and quote.history[0].since < found.at
    }
    if not histories:
        raise SpecInvalid("recent spot prices are not known", hint="leave out --price-history")
    return Replayed(histories, found.at)
