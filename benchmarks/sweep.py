"""
Measures how near a sweep comes to the best trial in hindsight, under a budget and a deadline that it must not pass.

    python -m benchmarks.sweep [--sweeps 20] [--trials 100] [--budgets 15 25 40] [--deadlines none 24 8]
                               [--max-parallel 8] [--keep-one-in 2] [--json OUT]

Each trial is a run by the real runner, ledger and policy, in a market of the local cloud that all trials of a sweep
share; what begins and what stops, `spotrun.sweep.rungs` decides, as for a real sweep. A budget counts in whole
trials: 25 pays for as many to their end, on demand. Learning curves are made up: a floor by learning rate and
regularisation, a pace by learning rate, so that curves cross, noise of 1 %; and the highest rates lose all to NaN.

The optimum in hindsight is the best value that any trial would log if it trained to its end: the budget pays for one.
A deadline is missed if a trial that has begun is cut off by it, or no trial is done although there was time for one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import product
from math import inf, log10, nan
from pathlib import Path
from random import Random
from statistics import fmean

import msgspec

from benchmarks.arguments import at_least
from benchmarks.local_market import LocalMarket
from spotrun.account.summary import summarise
from spotrun.clouds.local.catalog import INSTANCE_TYPES
from spotrun.run.events import ResumeRequested, StopRequested
from spotrun.spec.model import RunSpec
from spotrun.spec.trials import Grid, trial_spec
from spotrun.sweep.rungs import (
    Begin,
    CarryOn,
    EndedEpoch,
    Over,
    Stop,
    SweepPlan,
    TrialProgress,
    next_actions,
    trial_of,
    trials_of,
)
from tests.support.world import SimulatedWorld, Training

METRIC = "val_loss"
TYPE = "p3.2xlarge"
EPOCHS, EPOCH_S, BOOT_S = 27, 240.0, 300.0
"""Epochs of a trial, seconds of an epoch and of a boot: nearly two hours."""
LOOK_S, QUIET_S, IDLE_S = 15.0, 300.0, 60.0
"""
Seconds of a step of the sweep; between two decisions while no ledger has anything new, as the time alone may end a
sweep; and between two ticks of an idle run.
"""
LONGEST_S = 400 * 3600.0
RATES = tuple(f"{10 ** (-5 + 0.5 * power):.1e}" for power in range(10))
DECAYS = tuple(f"{10 ** (-5 + 0.5 * power):.1e}" for power in range(10))
GRID: Grid = {"lr": RATES, "decay": DECAYS}
JOB = RunSpec.from_dict(
    {
        "name": "sweep",
        "workdir": "/work",
        "train": {"run": "true"},
        "resources": {"accelerators": "V100:1"},
        "local": {"market": "generated"},
    }
)


class Case(msgspec.Struct, frozen=True):
    """One sweep. `budget` counts in whole trials on demand."""

    seed: int
    trials: int
    budget: float
    max_parallel: int
    keep_one_in: int | None
    deadline_h: float | None
    resume_stopped: bool = False

    @property
    def budget_usd(self) -> Decimal:
        usd_per_hour = next(each.on_demand_usd_per_hour for each in INSTANCE_TYPES if each.name == TYPE)
        hours = (EPOCHS * EPOCH_S + BOOT_S) / 3600
        return (usd_per_hour * Decimal(repr(self.budget * hours))).quantize(Decimal("0.01"))


class Swept(msgspec.Struct, frozen=True):
    """
    The result of a sweep. `best` and `optimum` are values of the metric; `cut_off` are the trials that the deadline
    ended; `took_h` is the time until nothing ran any more.
    """

    case: Case
    best: float
    optimum: float
    cost_usd: Decimal
    begun: int
    completed: int
    cut_off: int
    losses: int
    took_h: float

    @property
    def above_optimum(self) -> float:
        return self.best / self.optimum - 1

    @property
    def over_budget_usd(self) -> Decimal:
        return max(Decimal(0), self.cost_usd - self.case.budget_usd)

    @property
    def missed(self) -> bool:
        late = self.case.deadline_h is not None and self.took_h > self.case.deadline_h
        return late or self.cut_off > 0 or not self.completed


def curve(seed: int, params: dict[str, str]) -> list[float]:
    """Return the metric of the trial after each of its epochs, whenever and however often that is trained."""
    landscape = Random(f"{seed}/landscape")
    best_rate, best_decay = landscape.uniform(-3.5, -2.0), landscape.uniform(-4.0, -2.0)
    rate, decay = log10(float(params["lr"])), log10(float(params["decay"]))
    noise = Random(f"{seed}/{rate}/{decay}")
    if rate > best_rate + 1.5:
        return [nan] * EPOCHS
    floor = 0.3 + 0.08 * (rate - best_rate) ** 2 + 0.02 * (decay - best_decay) ** 2
    pace = 2.0 * 10 ** (-0.35 * (rate - best_rate))
    return [
        (floor + (2.3 - floor) * (1 + epoch / pace) ** -2.0) * (1 + noise.gauss(0, 0.01))
        for epoch in range(1, EPOCHS + 1)
    ]


class Running:
    """A trial on its way: its run, and what it logs."""

    def __init__(self, case: Case, number: int, begin: Begin, began_s: float, logs: Sequence[float]) -> None:
        self.number, self.budget_usd, self._logs = number, begin.budget_usd, logs
        self.began_s = began_s
        left_s = None if case.deadline_h is None else case.deadline_h * 3600 - began_s
        time_left = None if left_s is None else timedelta(seconds=left_s)
        seed = case.seed * 1000 + number
        self.world = SimulatedWorld(
            trial_spec(JOB, f"sweep-{number}", begin.budget_usd, begin.work, time_left),
            Training(steps=int(EPOCHS * EPOCH_S / 4), step_s=4.0, epochs=EPOCHS),
            LocalMarket(case.seed, "generated", (TYPE,), began_s),
            seed=seed,
            idle_s=IDLE_S,
        )
        self._seen, self._judged = -1, False
        self._last: TrialProgress | None = None

    @cached_property
    def _epoch_zero(self) -> datetime:
        return self.world.state.created.clock_epoch

    def pass_to(self, now_s: float) -> None:
        while not self.world.done and self.world.clock.monotonic() < now_s - self.began_s:
            self.world.step(now_s - self.began_s)

    def seen(self) -> TrialProgress:
        """Return the trial as its ledger has it, with its logged metric."""
        state = self.world.state
        if self._last is None or state.next_number != self._seen:
            self._seen = state.next_number
            now, total = self.world.clock.now(), EPOCHS if state.epochs else None
            summary = summarise(state, now)
            found = trial_of(
                self.number, state, summary, now, epochs_total=total, budget_usd=self.budget_usd, judged=self._judged
            )
            self._last = msgspec.structs.replace(found, epochs=tuple(map(self._logged, found.epochs)))
        return self._last

    def _logged(self, ended: EndedEpoch) -> EndedEpoch:
        value = self._logs[ended.epoch - 1]
        at = ended.at + timedelta(seconds=self.began_s)
        return EndedEpoch(ended.epoch, at, {} if value != value else {METRIC: value})

    def carry_on(self, now_s: float) -> None:
        """Carry the trial on. Its clock has stood still since it ended."""
        self.world.clock.pass_to(now_s - self.began_s)
        self.world.ledger("sweep").append(lambda _: ResumeRequested(by="sweep"))
        self.world.wake()
        self._judged = False

    def stop(self, reason: str) -> None:
        self._judged = True
        self.world.ledger("sweep").append(lambda _: StopRequested(by=reason))


def swept(case: Case) -> Swept:
    params = trials_of(GRID, min(case.trials, 100), case.seed)
    curves = [curve(case.seed, each) for each in params]
    plan = SweepPlan(
        trials=len(params),
        budget_usd=case.budget_usd,
        max_parallel=case.max_parallel,
        keep_one_in=case.keep_one_in,
        time=None if case.deadline_h is None else timedelta(hours=case.deadline_h),
        resume_stopped=case.resume_stopped,
        metric=METRIC,
    )
    found: list[Running] = []
    before: list[TrialProgress] | None = None
    now_s, cut_off, decided_s = 0.0, 0, 0.0
    while now_s < LONGEST_S:
        for each in found:
            each.pass_to(now_s)
        seen = [each.seen() for each in found]
        if seen == before and now_s - decided_s < QUIET_S:
            now_s += LOOK_S
            continue
        before, decided_s = seen, now_s
        left = None if case.deadline_h is None else timedelta(hours=case.deadline_h) - timedelta(seconds=now_s)
        for action in next_actions(plan, seen, left):
            if isinstance(action, Begin):
                found.append(Running(case, action.number, action, now_s, curves[action.number - 1]))
            elif isinstance(action, Stop):
                found[action.number - 1].stop(action.reason)
                cut_off += "deadline" in action.reason
            elif isinstance(action, CarryOn):
                found[action.number - 1].carry_on(now_s)
            elif isinstance(action, Over):
                return _result(case, found, curves, cut_off)
        now_s += LOOK_S
    raise AssertionError(f"{case} does not end")


def _result(case: Case, found: Sequence[Running], curves: Sequence[Sequence[float]], cut_off: int) -> Swept:
    results = [each.world.result for each in found]
    values = [value for each in found for ended in each.seen().epochs for value in ended.metrics.values()]
    overdue = sum("max_duration" in _detail(each) for each in found)
    return Swept(
        case=case,
        best=min(values, default=inf),
        optimum=min(value for logs in curves for value in logs if value == value),
        cost_usd=sum((each.cost_usd for each in results), Decimal(0)),
        begun=len(found),
        completed=sum(each.outcome == "completed" for each in results),
        cut_off=cut_off + overdue,
        losses=sum(each.losses for each in results),
        took_h=max((each.began_s + each.world.clock.monotonic() for each in found), default=0.0) / 3600,
    )


def _detail(trial: Running) -> str:
    end = trial.world.state.terminal
    return "" if end is None else end.detail


def told(found: Sequence[Swept]) -> dict[str, float]:
    above = [each.above_optimum for each in found]
    return {
        "sweeps": len(found),
        "above_optimum_mean": fmean(above),
        "above_optimum_max": max(above),
        "within_5_percent": fmean(each <= 0.05 for each in above),
        "over_budget_usd_max": float(max(each.over_budget_usd for each in found)),
        "share_of_budget_spent": fmean(float(each.cost_usd / each.case.budget_usd) for each in found),
        "deadlines_missed": sum(each.missed for each in found),
        "begun": fmean(each.begun for each in found),
        "completed": fmean(each.completed for each in found),
        "losses": fmean(each.losses for each in found),
        "hours": fmean(each.took_h for each in found),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=at_least(1), default=20)
    parser.add_argument("--trials", type=at_least(1), default=100)
    parser.add_argument("--budgets", type=float, nargs="+", default=[15.0, 25.0, 40.0])
    parser.add_argument("--max-parallel", type=at_least(1), default=8)
    parser.add_argument("--keep-one-in", type=at_least(2), default=2, help="2 stops the worst half")
    parser.add_argument("--deadlines", type=_hours, nargs="+", default=[None, 24.0, 8.0], help="hours, or none")
    parser.add_argument("--workers", type=at_least(1), default=2)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    cells = [*product(options.budgets, options.deadlines, (False, True))]
    asked = [
        Case(seed, options.trials, budget, options.max_parallel, options.keep_one_in, deadline, resume_stopped)
        for budget, deadline, resume_stopped in cells
        for seed in range(options.sweeps)
    ]
    found: list[Swept] = []
    with ProcessPoolExecutor(options.workers) as pool:
        for each in pool.map(swept, asked):
            found.append(each)
            told_of = f"{each.above_optimum:.3f} above the optimum, ${each.cost_usd:.2f} of ${each.case.budget_usd}"
            print(f"{len(found)} of {len(asked)}: {told_of}, missed: {each.missed}", file=sys.stderr, flush=True)
    for number, (budget, deadline, resume_stopped) in enumerate(cells):
        figures = told(found[number * options.sweeps : (number + 1) * options.sweeps])
        until = "no deadline" if deadline is None else f"{deadline:g} h"
        rest = ", --resume-stopped" if resume_stopped else ""
        shown = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
        print(f"budget of {budget:g} trials, {until}{rest}: {shown}")
    if options.json:
        options.json.write_text(json.dumps([msgspec.to_builtins(each) for each in found], indent=2))
    return 0


def _hours(text: str) -> float | None:
    return None if text == "none" else float(text)


if __name__ == "__main__":
    sys.exit(main())
