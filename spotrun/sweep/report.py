"""Reports a sweep: each trial's cost and result, which trials were stopped, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from spotrun.report.folding import say
from spotrun.report.machine_readable import json_object
from spotrun.report.tables import NOTHING, FiguresTable, dollars, plain, print_table
from spotrun.sweep.rungs import SweepPlan, TrialProgress, best_of, held_usd, metric_of
from spotrun.units import plain_usd


class TrialShown(msgspec.Struct, frozen=True):
    """A trial with its parameters. `why` is the reason for its end; "" if it is complete or has not ended."""

    trial: TrialProgress
    run: str
    params: Mapping[str, str]
    why: str

    @property
    def state(self) -> str:
        going = self.trial.outcome == "running" and self.trial.asked_to_stop
        return "stopping" if going else self.trial.outcome


class SweepShown(msgspec.Struct, frozen=True):
    """
    The current state of a sweep. `ended` is the reason why no more trials will begin; None as long as more may begin.
    """

    name: str
    plan: SweepPlan
    trials: tuple[TrialShown, ...]
    params: tuple[Mapping[str, str], ...]
    simulated: bool
    ended: str | None

    @property
    def metric(self) -> str | None:
        return metric_of(self.plan, [each.trial for each in self.trials])

    @property
    def spent_usd(self) -> Decimal:
        return sum((each.trial.spent_usd for each in self.trials), Decimal(0))

    def value(self, shown: TrialShown) -> float | None:
        """Return a trial's best value of the metric; None if the trial has not logged one."""
        metric = self.metric
        found = None if metric is None else best_of(shown.trial, metric, maximize=self.plan.maximize)
        return None if found is None or metric is None else found.metrics[metric]

    def gain_per_usd(self, shown: TrialShown) -> float | None:
        """
        Return the improvement of a trial's metric per dollar that the trial has cost; None if this is unknown. The
        improvement is the difference between the first and the best value.
        """
        value, metric = self.value(shown), self.metric
        first = next((each.metrics[metric] for each in shown.trial.epochs if metric in each.metrics), None)
        if value is None or first is None or not shown.trial.spent_usd:
            return None
        return abs(value - first) / float(shown.trial.spent_usd)

    @property
    def ranked(self) -> list[TrialShown]:
        """The trials, the best one first. Trials without a value come last."""
        sign = -1 if self.plan.maximize else 1
        worst = float("inf")
        return sorted(self.trials, key=lambda each: worst if (v := self.value(each)) is None else sign * v)

    @property
    def best(self) -> TrialShown | None:
        first = self.ranked[0] if self.trials else None
        return None if first is None or self.value(first) is None else first


def show(sweep: SweepShown) -> None:
    metric = sweep.metric or "metric"
    heads = ("trial", "parameters", "state", "epochs", "cost", f"best\n{plain(metric, 30)}", "gained\nper $")
    table = FiguresTable("", heads, texts=(0, 1, 2), gap=2)
    for each in sweep.ranked:
        table.add_row(
            [
                each.run,
                params_in_words(each.params),
                each.state,
                str(each.trial.last_epoch or NOTHING),
                dollars(each.trial.spent_usd),
                _figure(sweep.value(each)),
                _figure(sweep.gain_per_usd(each)),
            ]
        )
    if sweep.trials:
        print_table(table)
    for line in notes(sweep):
        say(line)


def notes(sweep: SweepShown) -> list[str]:
    """Return the lines below the table: why trials were stopped, the total cost, and the best trial."""
    lines = [f"{each.run} {each.state}: {plain(each.why)}" for each in sweep.ranked if each.why]
    simulated = " (simulated)" if sweep.simulated else ""
    held = held_usd([each.trial for each in sweep.trials]) - sweep.spent_usd
    kept = f", and ${held:.2f} are reserved for the trials that still run" if held > 0 else ""
    cost = f"they cost {dollars(sweep.spent_usd)}{simulated} of ${plain_usd(sweep.plan.budget_usd)}{kept}"
    lines.append(f"{len(sweep.trials)} of {sweep.plan.trials} trials have begun; {cost}.")
    if sweep.ended:
        lines.append(f"No more trials begin: {plain(sweep.ended)}.")
    if (best := sweep.best) is not None:
        named = params_in_words(best.params)
        lines.append(f"Best {plain(sweep.metric or '')}: {_figure(sweep.value(best))}, by {best.run} ({named}).")
    return lines


def as_json(sweep: SweepShown) -> dict[str, Any]:
    best = sweep.best
    return json_object(
        str,
        sweep=sweep.name,
        metric=sweep.metric,
        mode="max" if sweep.plan.maximize else "min",
        budget_usd=sweep.plan.budget_usd,
        cost_usd=sweep.spent_usd,
        simulated=sweep.simulated,
        trials=sweep.plan.trials,
        begun=len(sweep.trials),
        ended=sweep.ended is not None,
        not_begun_because=sweep.ended or None,
        best=None if best is None else best.run,
        rows=[_row(sweep, each) for each in sweep.ranked],
        not_begun=sweep.params[len(sweep.trials) :],
    )


def _row(sweep: SweepShown, shown: TrialShown) -> dict[str, Any]:
    trial = shown.trial
    return {
        "run": shown.run,
        "trial": trial.number,
        "params": shown.params,
        "state": shown.state,
        "why": shown.why or None,
        "epochs": trial.last_epoch,
        "cost_usd": trial.spent_usd,
        "budget_usd": trial.budget_usd,
        "best": sweep.value(shown),
        "gained_per_usd": sweep.gain_per_usd(shown),
        "values": [] if sweep.metric is None else [each.metrics.get(sweep.metric) for each in trial.epochs],
    }


def params_in_words(params: Mapping[str, str]) -> str:
    return " ".join(f"{name}={plain(value, 30)}" for name, value in params.items())


def _figure(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


def begun(run: str, params: Mapping[str, str], budget_usd: Decimal) -> str:
    return f"{run} begins: {params_in_words(params)}, with up to ${plain_usd(budget_usd)}"


def progress(run: str, before: TrialProgress | None, now: TrialProgress, metric: str | None) -> Sequence[str]:
    """Return a line for each epoch that has ended since `before`, and one line if the trial has ended."""
    known = before.last_epoch if before is not None else 0
    lines = []
    for each in now.epochs:
        if each.epoch > known:
            value = each.metrics.get(metric or "")
            said = "" if metric is None else f": {plain(metric, 30)} {_figure(value)}"
            lines.append(f"{run} epoch {each.epoch}{said}, {dollars(now.spent_usd)} so far")
    if now.settled and (before is None or not before.settled):
        lines.append(f"{run} {now.outcome}: {dollars(now.spent_usd)}")
    return lines
