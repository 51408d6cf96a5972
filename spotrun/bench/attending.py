"""Runs the trials of a bench, several at a time. At the end, no trial and no instance of the bench is left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from queue import Empty, Queue
from typing import NamedTuple

from spotrun import address
from spotrun.account.summary import summarise
from spotrun.bench.flags import BenchFlags, about_types, base_of
from spotrun.bench.meter import Measurement, Meter
from spotrun.bench.report import Progress
from spotrun.bench.result import BenchRow, Prices, TrialOutcome, begins_s, fate_of
from spotrun.bench.scheduling import CENT, next_ones, shares
from spotrun.bench.trials import BenchTrial, spec_of, unnamed_arguments
from spotrun.clouds.registry import cloud_of
from spotrun.errors import SpecInvalid, SpotrunError, StoreError
from spotrun.folder.bench_record import BenchResult, digest_of, keep
from spotrun.folder.status_objects import AgentStatus
from spotrun.policy.changeovers import measured_starts
from spotrun.run.events import BENCH
from spotrun.run.reasons import in_one_line
from spotrun.run.state import RunState
from spotrun.runner.creation import new_uid, prepare_run
from spotrun.runner.tick import Tick
from spotrun.runs.asking import say
from spotrun.runs.first_look import look_at_market
from spotrun.runs.interrupts import request_stop, what_is_left
from spotrun.runs.job_checks import check_job, check_machine
from spotrun.runs.known import create_known
from spotrun.runs.open_run import OpenRun, default_store, who, writer
from spotrun.runs.signals import Signalled, undisturbed
from spotrun.runs.termination import end_instances, take_down
from spotrun.spec.arguments import Script
from spotrun.spec.file import load_spec, placed
from spotrun.spec.kinds import Kind
from spotrun.spec.model import RunSpec
from spotrun.spec.varied_arguments import unvaried
from spotrun.store.port import Store
from spotrun.store.retrying import persist
from spotrun.units import count_of, plain_usd, to_the_second

LOOK_S = 0.25
"""Seconds of system time between two checks of the trials' progress."""
LEAVE_WITHIN_S = 90.0
"""Maximum seconds of system time to wait for trials to end. A run waits up to a minute for its instances' end."""
Watch = Callable[[Sequence[Progress]], None]
"""A function that receives the progress of each running trial."""


class PlannedTrial(NamedTuple):
    """
    A trial that is ready to begin.

    `job` is the name of the user's job. `job_digest` is the digest of the job's settings, without those that a bench
    varies. `spec` is the job with the trial's settings. `prices` are the hourly prices of the trial's instances.
    `least_usd` is the minimum budget with which the trial's run can begin; None if unknown.
    """

    job: str
    job_digest: str
    trial: BenchTrial
    spec: RunSpec
    prices: Prices
    least_usd: Decimal | None


class BenchPlan(NamedTuple):
    """A bench that is ready to begin. `base` is the type with which all other types are compared."""

    job: RunSpec
    trials: Sequence[PlannedTrial]
    budget_usd: Decimal | None
    base: str | None
    notes: Sequence[str]


def wanted(path: Path, arguments: Sequence[str], wish: BenchFlags) -> BenchPlan:
    """
    Read the job and the flags, and find the prices and minimum budget of each trial. Nothing is rented.

    Raises:
        SpecInvalid, CloudError, StoreError, NotInstalled: one of the trials cannot begin.
    """
    overrides: dict[str, object] = {"checkpoint.uri": None if wish.store is None else address.absolute(wish.store)}
    limit, budget_usd, names = wish.limit, wish.budget_usd, wish.names
    spec = load_spec(path, overrides, default_store(), arguments)
    with placed(path, overrides):
        check_machine(spec)
        checked, script = check_job(spec, cloud_of(spec)), Script(spec)
        chosen = wish.trials(spec)
        base = base_of(wish.against, [str(each.kind) for each in chosen])
        with about_types(given=bool(wish.types)):
            specs = [spec_of(spec, script, each, names, limit, budget_usd) for each in chosen]
            found = list(planned(spec, checked.runs, chosen, specs))
    require_budget(found, budget_usd)
    unnamed = unnamed_arguments(spec.train, script, names, devices=wish.devices is not None)
    return BenchPlan(spec, found, budget_usd, base, [*checked.notes, *unnamed])


def planned(
    job: RunSpec, runs: Store | None, trials: Sequence[BenchTrial], specs: Sequence[RunSpec]
) -> Iterator[PlannedTrial]:
    """
    Find the prices and the minimum budget of each trial of `job`. Nothing is rented. The prices of each kind are read
    only once.

    `runs` is the store for the trials' runs. `specs` contains a spec for each of `trials`, in the same order.

    Raises:
        SpecInvalid, CloudError: a trial cannot be rented.
    """
    seen: dict[Kind | None, tuple[Prices, Decimal | None]] = {}
    for trial, spec in zip(trials, specs, strict=True):
        if trial.kind not in seen:
            market = look_at_market(spec, cloud_of(spec), runs, part_of=BENCH)
            seen[trial.kind] = Prices.of(market.offerings, spec.num_nodes), market.least_usd
        yield PlannedTrial(job.name, digest_of(unvaried(job)), trial, spec, *seen[trial.kind])


def require_budget(trials: Sequence[PlannedTrial], budget: Decimal | None) -> None:
    """
    Check that the whole budget is enough to begin any one of the trials.

    Raises:
        SpecInvalid: a trial needs more than the whole budget.
    """
    if budget is None:
        return
    for each in trials:
        if each.least_usd is not None and each.least_usd > budget:
            enough = sum((one.least_usd or Decimal(0) for one in trials), Decimal(0))
            raise SpecInvalid(
                f"--budget {budget} is too small: trial {each.trial.name} needs at least "
                f"${plain_usd(each.least_usd)} to begin",
                hint=f"--budget {plain_usd(enough)} lets all trials begin",
            )


@contextmanager
def measuring(
    trials: Sequence[PlannedTrial], steps: int, budget: Decimal | None, max_parallel: int | None, watch: Watch
) -> Iterator[Iterator[BenchRow]]:
    """
    Run the trials. Yield an iterator over their results, each available as soon as its trial is measured.

    `budget` is for all trials together. `max_parallel` is the maximum number of trials that run at the same time; if it
    is None, one trial of each kind of instance may run. At the end of the `with` block, even after an error, all
    instances of the trials are ended.
    """
    bench = _Bench(trials, steps, budget, max_parallel, watch)
    try:
        yield bench.rows()
    finally:
        with undisturbed():
            bench.leave_nothing()


class _Bench:
    """The waiting and the running trials. Each running trial has a share of the budget."""

    def __init__(
        self, trials: Sequence[PlannedTrial], steps: int, budget: Decimal | None, max_parallel: int | None, watch: Watch
    ) -> None:
        self._trials = trials
        self._steps = steps
        self._left_usd = budget
        self._max_parallel = max_parallel
        self._watch = watch
        self._waiting = list(range(len(trials)))
        self._going: list[_TrialRun] = []
        self._ended: Queue[_TrialRun] = Queue()

    def rows(self) -> Iterator[BenchRow]:
        while self._waiting or self._going:
            if (row := self._begin()) is not None:
                yield row
            self._watch([each.progress for each in self._going])
            with suppress(Empty):
                ended = self._ended.get(timeout=LOOK_S)
                self._going.remove(ended)
                yield self._row(ended)

    def _begin(self) -> BenchRow | None:
        """
        Begin the trials that `next_ones` chooses. If no trial is running and the remaining budget is too small for the
        next one, skip that trial, and return a row that says so.
        """
        kinds = [self._trials[number].trial.kind for number in self._waiting]
        places = next_ones(kinds, [each.kind for each in self._going], self._max_parallel)
        turns = [self._waiting[place] for place in places]
        leasts = [self._trials[number].least_usd for number in turns]
        budgets = [None for _ in turns] if self._left_usd is None else shares(self._left_usd, leasts)
        for number, budget_usd in zip(turns, budgets, strict=False):
            self._start(number, budget_usd)
        if self._going or not turns:
            return None
        self._waiting.remove(turns[0])
        without = self._trials[turns[0]]
        reason = f"${self._left_usd:.2f} are left, but it needs ${plain_usd(without.least_usd or CENT)} to begin"
        return BenchRow(trial=without.trial, fate=TrialOutcome.NO_MONEY, prices=without.prices, reason=reason)

    def _start(self, number: int, budget_usd: Decimal | None) -> None:
        trial = _TrialRun(self._trials[number], budget_usd, number, len(self._trials), self._steps, self._ended)
        self._waiting.remove(number)
        self._going.append(trial)
        if self._left_usd is not None and budget_usd is not None:
            self._left_usd -= budget_usd
        trial.start()

    def _row(self, ended: _TrialRun) -> BenchRow:
        row = ended.row()
        if self._left_usd is not None and ended.budget_usd is not None:
            self._left_usd += max(Decimal(0), ended.budget_usd - row.usd)
        return row

    def leave_nothing(self) -> None:
        for each in self._going:
            each.leave()
        ends_s = time.monotonic() + LEAVE_WITHIN_S
        for each in self._going:
            each.join(max(0.0, ends_s - time.monotonic()))


class _Abandoned(Exception):
    """Raised to end a trial before it has been measured."""


class _TrialRun:
    """A trial's run. A separate thread takes care of it, from its creation until all its instances have ended."""

    def __init__(
        self,
        planned: PlannedTrial,
        budget_usd: Decimal | None,
        number: int,
        trials: int,
        steps: int,
        ended: Queue[_TrialRun],
    ) -> None:
        self.budget_usd = budget_usd
        self.progress = Progress(planned.trial, number, trials, 0, steps, None)
        self._planned = planned
        self._spec = planned.spec.model_copy(
            update={"budget": planned.spec.budget.model_copy(update={"max_usd": budget_usd})}
        )
        self._steps = steps
        self._meter = Meter(steps)
        self._ended = ended
        self._unwanted = threading.Event()
        self._failure: BaseException | None = None
        self._run = _created(self._spec)
        self._thread = threading.Thread(target=self._attend, name=self._run.id, daemon=True)

    @property
    def kind(self) -> Kind | None:
        return self._planned.trial.kind

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """Request that the trial end. Its runner checks for this request every two seconds."""
        self._unwanted.set()

    def join(self, within_s: float) -> None:
        """Wait until the trial's instances are gone. After `within_s` seconds, stop waiting and report what is left."""
        if self._thread.ident is None:  # a signal came after the thread was created and before it was started
            _leave_nothing(self._run)
            return
        self._thread.join(within_s)
        if self._thread.is_alive():
            say(what_is_left(self._run))

    def _attend(self) -> None:
        try:
            self._run.runner.run(self._look)
        except _Abandoned:
            _leave_nothing(self._run)
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self._failure = error
            _leave_nothing(self._run)
        finally:
            self._ended.put(self)

    def _look(self, tick: Tick) -> None:
        if self._unwanted.is_set():
            raise _Abandoned
        if tick.status is not None and not self._meter.enough:
            self._see(tick.status)
        done = min(self._meter.steps, self._steps)
        self.progress = replace(self.progress, steps=done, held_up=tick.waiting_for)

    def _see(self, status: AgentStatus) -> None:
        self._meter.show(status)
        if self._meter.enough:  # end the instances first: a last checkpoint is useless, as no run resumes a measurement
            end_instances(self._run)
            request_stop(self._run)

    def row(self) -> BenchRow:
        """Return the result of the ended trial, or raise the error that ended it."""
        if self._failure is not None:
            raise self._failure
        run, state = self._run, self._run.ledger.state
        assert state.terminal is not None
        detail = in_one_line(state.terminal.detail)
        measured, fate, reason = self._meter.measured, TrialOutcome.MEASURED, ""
        if not self._meter.enough and state.terminal.outcome == "failed":
            measured, fate, reason = None, fate_of(detail), detail
        elif measured is None:
            fate, reason = TrialOutcome.TOO_SHORT, self._why_too_short(state, detail)
        if measured is not None:
            self._keep(run, measured)
        last = next(reversed(list(state.attempts.values())), None)
        offering = None if last is None else state.launch_of(last).intent.offering
        return BenchRow(
            trial=self._planned.trial,
            fate=fate,
            prices=self._planned.prices,
            instance_type="" if offering is None else offering.instance_type,
            accelerators="" if offering is None else offering.accelerators,
            measured=measured,
            begins_s=begins_s(state),
            usd=summarise(state, run.clock.now()).total.cost_usd,
            run=run.id,
            reason=reason,
        )

    def _why_too_short(self, state: RunState, detail: str) -> str:
        assert state.terminal is not None
        lasted = state.terminal.at - state.created_at
        if state.terminal.outcome == "completed":
            return "the training ended during its first steps, which are not measured; let it train longer"
        steps, time = count_of(self._meter.warm_up + 1, "step"), to_the_second(lasted)
        return f"it did not make {steps} in {time} ({detail}); raise --trial-timeout or --budget"

    def _keep(self, run: OpenRun, measured: Measurement) -> None:
        """Store the measured speed for later runs of the job."""
        kind = self._planned.trial.kind
        if kind is None:
            return
        total, step_s = measured.steps_total, 1 / measured.steps_per_s
        found = BenchResult(
            kind=str(kind),
            step_s=step_s,
            samples=measured.samples / measured.steps if measured.samples else None,
            work_s=None if total is None else total * step_s,
            at=run.clock.now(),
            run=run.id,
            doubt=min(1.0, measured.doubt),
            start_s=next(reversed(measured_starts(run.ledger.state).values()), None),
            usual_boot_s=self._spec.boot.total_seconds(),
            job=self._planned.job_digest,
            otherwise=self._planned.trial.otherwise,
            args=self._spec.train.args,
            command=self._spec.train.run or "",
        )
        job = self._spec.model_copy(update={"name": self._planned.job})
        try:
            persist(lambda: keep(run.runs, job, found))
        except StoreError as error:
            say(f"the measured speed was not stored for later runs: {error.one_line}")


def _created(spec: RunSpec) -> OpenRun:
    """Create a run. If a signal interrupts this, end the run and its instances."""
    uid = new_uid()
    try:
        return create_known(prepare_run(spec, f"bench:{who()}", uid=uid, part_of=BENCH))
    except (KeyboardInterrupt, Signalled):
        with undisturbed(), suppress(SpotrunError):
            _leave_nothing(OpenRun(f"{spec.checkpoint.uri.rstrip('/')}/{spec.name}-{uid}", writer("runner")))
        raise


def _leave_nothing(run: OpenRun) -> None:
    try:
        take_down(run)
    except SpotrunError as error:
        say(f"{error.one_line}; {what_is_left(run)}")
