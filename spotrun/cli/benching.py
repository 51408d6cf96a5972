"""Runs the trials of a bench, one after the other, and leaves nothing running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

from spotrun.account.summary import summarise
from spotrun.bench.meter import Measured, Meter
from spotrun.bench.result import Fate, Prices, Row, begins_s, fate_of
from spotrun.bench.trials import Trial
from spotrun.cli.asking import say
from spotrun.cli.before_launch import first_look, no_choice
from spotrun.cli.down import end_instances, take_down
from spotrun.cli.interrupts import request_stop, what_is_left
from spotrun.cli.known import remember
from spotrun.cli.runs import OpenRun, open_run, who
from spotrun.cli.signals import undisturbed
from spotrun.creation import create_run
from spotrun.errors import SpecInvalid, SpotrunError, StoreError
from spotrun.folder.bench_record import Benched, keep
from spotrun.folder.status_objects import AgentStatus
from spotrun.market.wishes import may_be_asked
from spotrun.policy.least_budget import least_budget_usd
from spotrun.report.bench import Progress
from spotrun.run.reasons import in_one_line
from spotrun.run.state import RunState
from spotrun.runner import Tick
from spotrun.spec.kinds import Kind
from spotrun.spec.model import RunSpec
from spotrun.store.retrying import persist
from spotrun.units import count_of, to_the_second

Watch = Callable[[Progress], None]


class Planned(NamedTuple):
    """A trial of `job` that may be rented: its run, dollars an hour, and the least budget with which it begins."""

    job: str
    trial: Trial
    spec: RunSpec
    prices: Prices
    least_usd: Decimal | None


def planned(job: str, trials: Sequence[Trial], specs: Sequence[RunSpec]) -> Iterator[Planned]:
    """
    See whether there is what the trials of `job` need, which `specs` measure. Nothing is rented. The market of a kind
    is looked at once.

    Raises:
        SpecInvalid, CloudError: there is not.
    """
    seen: dict[Kind | None, tuple[Prices, Decimal | None]] = {}
    for trial, spec in zip(trials, specs, strict=True):
        if trial.kind not in seen:
            seen[trial.kind] = _market_for(spec)
        yield Planned(job, trial, spec, *seen[trial.kind])


def _market_for(spec: RunSpec) -> tuple[Prices, Decimal | None]:
    """What suits a run costs, and the least budget with which it begins."""
    unborn, world = first_look(spec)
    asked = [each for each in world.offerings if may_be_asked(each, spec.resources)]
    if not asked:
        raise no_choice(spec, world.offerings)
    return Prices.of(asked, spec.num_nodes), least_budget_usd(unborn, spec, world)


def require_budget(trials: Sequence[Planned], budget: Decimal | None) -> None:
    """
    Raises:
        SpecInvalid: one of them would not even begin with it.
    """
    if budget is None:
        return
    for each in trials:
        if each.least_usd is not None and each.least_usd > budget:
            enough = sum((one.least_usd or Decimal(0) for one in trials), Decimal(0))
            raise SpecInvalid(
                f"--budget {budget}: {each.trial.name} does not begin with less than ${each.least_usd}",
                hint=f"--budget {enough} lets all of them begin",
            )


def measure(trials: Sequence[Planned], steps: int, budget: Decimal | None, watch: Watch) -> Iterator[Row]:
    """
    A row for each trial, in their order. `budget` is for all together. What was rented for a trial has ended before its
    row is given, also where Ctrl-C or a signal ends it.
    """
    left = budget
    for number, each in enumerate(trials):
        if left is not None and each.least_usd is not None and left < each.least_usd:
            reason = f"${left:.2f} are left, and ${each.least_usd} are needed to begin"
            yield Row(trial=each.trial, fate=Fate.NO_MONEY, prices=each.prices, reason=reason)
            continue
        limited = each.spec.model_copy(update={"budget": each.spec.budget.model_copy(update={"max_usd": left})})
        row = _Trial(each, limited, number, len(trials), steps, watch).row()
        left = None if left is None else max(Decimal(0), left - row.usd)
        yield row


class _Trial:
    """One run, from its launch until nothing of it is left."""

    def __init__(self, planned: Planned, spec: RunSpec, number: int, trials: int, steps: int, watch: Watch) -> None:
        self._planned = planned
        self._spec = spec
        self._number = number
        self._trials = trials
        self._steps = steps
        self._meter = Meter(steps)
        self._watch = watch

    def row(self) -> Row:
        run = open_run(create_run(self._spec, f"bench:{who()}"), None, "runner")
        remember(run)
        try:
            run.runner.run(lambda tick: self._look(run, tick))
        except BaseException:
            with undisturbed():
                _leave_nothing(run)
            raise
        return self._row(run, run.ledger.state)

    def _look(self, run: OpenRun, tick: Tick) -> None:
        if tick.status is not None and not self._meter.enough:
            self._see(run, tick.status)
        steps = min(self._meter.steps, self._steps)
        self._watch(Progress(self._planned.trial, self._number, self._trials, steps, self._steps, tick.waiting_for))

    def _see(self, run: OpenRun, status: AgentStatus) -> None:
        self._meter.show(status)
        if self._meter.enough:  # its instances first: nobody goes on with a last checkpoint of what was measured
            end_instances(run)
            request_stop(run)

    def _row(self, run: OpenRun, state: RunState) -> Row:
        assert state.terminal is not None
        detail = in_one_line(state.terminal.detail)
        measured, fate, reason = self._meter.measured, Fate.MEASURED, ""
        if not self._meter.enough and state.terminal.outcome == "failed":
            measured, fate, reason = None, fate_of(detail), detail
        elif measured is None:
            fate, reason = Fate.TOO_SHORT, self._why_too_short(state, detail)
        if measured is not None:
            self._keep(run, measured)
        last = next(reversed(list(state.attempts.values())), None)
        offering = None if last is None else state.launch_of(last).intent.offering
        return Row(
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
            return "it ended before its beginning was over; let it train longer"
        steps, time = count_of(self._meter.warm_up + 1, "step"), to_the_second(lasted)
        return f"it did not make {steps} in {time} ({detail}); give it more by --within or --budget"

    def _keep(self, run: OpenRun, measured: Measured) -> None:
        """For later runs of the job as it was measured."""
        kind = self._planned.trial.kind
        if kind is None:
            return
        total, step_s = measured.steps_total, 1 / measured.steps_per_s
        found = Benched(
            kind=str(kind),
            step_s=step_s,
            samples=measured.samples / measured.steps if measured.samples else None,
            work_s=None if total is None else total * step_s,
            at=run.clock.now(),
            run=run.id,
        )
        job = self._spec.model_copy(update={"name": self._planned.job})
        try:
            persist(lambda: keep(run.runs, job, found))
        except StoreError as error:
            say(f"later runs will not know it: {error.one_line}")


def _leave_nothing(run: OpenRun) -> None:
    try:
        take_down(run)
    except SpotrunError as error:
        say(f"{error.one_line}; {what_is_left(run)}")
