"""
Decides the next steps of a sweep: which trials begin, with what budgets, and which trials stop. If no further trial can
begin, gives the reason.

    held = the costs of all settled trials + the whole budgets of all unsettled trials
    left = the sweep's budget - held             the maximum budget of the next trial

A trial is settled once it has ended and costs nothing more. No run costs more than its budget, so the sweep never costs
more than its budget.

Optuna chooses the trials' parameters, and decides which trials are the worst so far (`ask`, `report`, `should_prune`).
For each decision, spotrun creates a new Optuna study from the runs' ledgers, so no other state is kept.

Once all trials have begun, the rest of the budget can be used to continue trials that were stopped, the most promising
first.

Bad trials are stopped early by *halving*: at each comparison, only the best trials continue. The first comparison of a
trial is after `grace_epochs` epochs, the next after `keep_one_in` times as many, and so on. The trial is compared with
the trials that have already trained that many epochs, and continues if it is among the best 1/`keep_one_in` of them.
The halving is asynchronous: no trial waits for another.

Times are wall-clock times, because the clocks of trials may run at different speeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from difflib import get_close_matches
from functools import lru_cache
from math import nan
from statistics import median

import msgspec
import optuna

from spotrun.account.outcome import outcome
from spotrun.account.summary import Account, RunSummary
from spotrun.account.timeline import Activity
from spotrun.run.billing import ZERO
from spotrun.run.state import RunState
from spotrun.units import count_of

optuna.logging.set_verbosity(optuna.logging.WARNING)

AMPLE = Decimal(2)
"""
The usual budget of a trial, as a multiple of its expected cost on demand. It is more than 1, because the budget has to
cover the run's reservations, and a run reserves the cost of the whole time-to-live of its instances.
"""
GENEROUS = Decimal(4)
"""
The maximum budget of a trial, as a multiple of its expected cost. A trial gets such a budget only if the sweep has
enough money left to give it to all trials that have not begun yet. The trial can then complete even if its instances
take much longer to start than those of earlier trials.
"""
LEAST = Decimal("1.3")
"""Minimum budget of a trial, as a multiple of its expected cost. With less, the trial does not begin."""
SPARE = 1.3
"""Minimum time until the deadline, as a multiple of a trial's expected time. With less, no further trial begins."""
START = timedelta(minutes=5)
"""
The expected time from the request for an instance to its first step. It is used until a trial has measured this time.
"""
ALONE = timedelta(minutes=30)
"""
Maximum time for which the first trial runs alone. It runs alone until its first epoch is complete and shows how much
time and money a trial needs. This has two advantages. If the job has a fault, only one trial fails. And later trials
reserve only the money that they need. If the first epoch takes longer than ALONE, the other trials begin without these
figures.
"""
PILOT_IN = 2
"""
Number by which the sweep's budget is divided; the result is the budget of the first trial. It is a large part of the
sweep's budget, because the cost of a trial is still unknown, and because a trial's budget cannot be raised later.
"""
MORE = 1.2
"""
Factor by which a sweep takes longer and costs more than halving would in theory. There are two reasons: the trials do
not wait for each other, and prices and losses vary.
"""
FAILED_MAX = 3
"""
Number of failed trials after which no more trials begin, provided that no trial has completed an epoch by then. In that
case, the fault is probably in the job itself.
"""
ALIKE = 0.8
"""
Minimum similarity of two names of metrics, for finding a misspelling. If no trial logs the metric that the user names,
such as val_los, but a trial logs one with a similar name, such as val_loss, the user has probably misspelled the name.
"""
CENT = Decimal("0.01")
_STARTING = (Activity.WAIT, Activity.BOOT, Activity.SETUP, Activity.RESTORE)


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """
    The limits that the user sets, and the facts that are known before any trial.

    At each comparison, one trial in `keep_one_in` continues: with 2, the worse half of the trials is stopped. If it is
    None, no trial is stopped. The first comparison is after `grace_epochs` epochs. If that is None, it is as late as
    the budget and `time` allow. `time` is the time from the sweep's beginning to its deadline. If `resume_stopped` is
    True, money that is left after all trials have begun is used to continue stopped trials. If `metric` is None, trials
    are compared by the logged metric that looks most like a loss.

    `most_usd` is the job's budget for one run. `least_usd` is the minimum budget with which a run can begin. `work` is
    a trial's training time, if the job states it. `usd_per_hour` is the maximum price per hour of a trial, for all its
    instances together.
    """

    trials: int
    budget_usd: Decimal
    max_parallel: int
    keep_one_in: int | None = None
    grace_epochs: int | None = None
    time: timedelta | None = None
    resume_stopped: bool = False
    metric: str | None = None
    maximize: bool = False
    most_usd: Decimal | None = None
    least_usd: Decimal = CENT
    work: timedelta | None = None
    usd_per_hour: Decimal = ZERO


class EndedEpoch(msgspec.Struct, frozen=True):
    """A completed epoch of a trial. `epoch` counts from 1."""

    epoch: int
    at: datetime
    metrics: dict[str, float]


class TrialProgress(msgspec.Struct, frozen=True, kw_only=True):
    """
    A trial that has begun. Trials are numbered from 1.

    `settled` is True once the trial has ended and costs nothing more. `asked_to_stop` is True if its ledger has a stop
    request. `judged` is True if the newest stop request comes from the sweep, not from the user. If the trial was
    stopped and continued, `spared` is its last epoch before it continued: comparisons at this epoch or an earlier one
    do not stop the trial again.

    `epoch_s` is the training time of an epoch, and `start_s` is the time without training in the first epoch. Both are
    known once an epoch is completed. `usd_per_hour` is the maximum total price of the trial's instances, and
    `price_usd_per_hour` is their price in the cheapest launch. `age` is the run time since the trial's run was created.
    """

    number: int
    budget_usd: Decimal
    age: timedelta = timedelta()
    spent_usd: Decimal = ZERO
    outcome: str = "running"
    settled: bool = False
    asked_to_stop: bool = False
    judged: bool = False
    spared: int = 0
    epochs: tuple[EndedEpoch, ...] = ()
    epochs_total: int | None = None
    epoch_s: float | None = None
    start_s: float = 0.0
    usd_per_hour: Decimal = ZERO
    price_usd_per_hour: Decimal = ZERO

    @property
    def held_usd(self) -> Decimal:
        """The part of the sweep's budget that is reserved for this trial."""
        return self.spent_usd if self.settled else max(self.budget_usd, self.spent_usd)

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else 0


class Need(msgspec.Struct, frozen=True):
    """
    The expected time and dollars of a whole trial. `work` is its training time. `time` also includes the time from the
    launch to the first step.
    """

    work: timedelta
    time: timedelta
    usd: Decimal


class Begin(msgspec.Struct, frozen=True):
    """
    The action of beginning a trial. Its run may spend `budget_usd`. `work` is its expected training time; None if this
    is not known.
    """

    number: int
    budget_usd: Decimal
    work: timedelta | None


class Stop(msgspec.Struct, frozen=True):
    number: int
    reason: str


class CarryOn(msgspec.Struct, frozen=True):
    """The action of continuing a trial that the sweep has stopped."""

    number: int


class Over(msgspec.Struct, frozen=True):
    """
    States that the sweep has ended: no trial runs, and none will begin. `reason` says why the remaining trials do not
    begin; "" if all have begun.
    """

    reason: str


class Unknown(msgspec.Struct, frozen=True):
    """
    States that trials cannot be compared, because no trial logs the metric. `metric` is the metric that the user named;
    "" if the user named none, and no trial logs one that looks like a loss. `known` are the metrics that the trials
    log.
    """

    metric: str
    epoch: int
    known: tuple[str, ...]

    @property
    def meant(self) -> str | None:
        return next(iter(get_close_matches(self.metric, self.known, 1, ALIKE)), None)


Action = Begin | Stop | CarryOn | Over | Unknown


# -- trials ----------------------------------------------------------------------------------------------------------


def trials_of(grid: Mapping[str, Sequence[str]], count: int, seed: int) -> list[dict[str, str]]:
    """
    Return the parameters of `count` different trials. If the grid has fewer combinations, return all of them. The same
    seed gives the same trials in the same order.
    """
    study = optuna.create_study(sampler=optuna.samplers.GridSampler(grid, seed))
    asked = (study.ask() for _ in range(count))
    return [{name: str(each.suggest_categorical(name, values)) for name, values in grid.items()} for each in asked]


def trial_of(
    number: int,
    state: RunState,
    summary: RunSummary,
    now: datetime,
    *,
    epochs_total: int | None = None,
    budget_usd: Decimal,
    judged: bool = False,
) -> TrialProgress:
    """
    Return the progress of a trial at run time `now`, from the ledger of its run. `epochs_total` is the number of epochs
    that the agent reports; None if it is unknown. `judged` is copied to the result.
    """
    created = state.created

    def on_the_wall(at: datetime) -> datetime:
        return created.clock_epoch + (at - created.clock_epoch) / created.time_scale

    epochs = tuple(EndedEpoch(each.event.epoch + 1, on_the_wall(each.at), each.event.metrics) for each in state.epochs)
    launches = state.launches.values()
    prices = [launch.intent.price_ceiling_usd_per_hour for launch in launches]
    least = min((launch.intent.offering.price_usd_per_hour for launch in launches), default=ZERO)
    ended = outcome(state)
    return TrialProgress(
        number=number,
        budget_usd=budget_usd,
        age=now - state.created_at,
        spent_usd=summary.total.cost_usd,
        outcome=ended,
        settled=state.terminal is not None and all(launch.settled for launch in launches),
        asked_to_stop=state.stop_requested,
        judged=judged,
        spared=max((each.event.epoch + 1 for each in state.epochs if each.at <= state.opened_at), default=0),
        epochs=epochs,
        epochs_total=epochs[-1].epoch if ended == "completed" and epochs else epochs_total,
        epoch_s=_epoch_s(summary.epochs),
        start_s=_start_s(summary.epochs),
        usd_per_hour=created.size * (max(prices, default=ZERO) + created.billing.attached_usd_per_hour),
        price_usd_per_hour=created.size * (least + created.billing.attached_usd_per_hour),
    )


def _epoch_s(epochs: Sequence[Account]) -> float | None:
    return median(each.productive.total_seconds() for each in epochs) if epochs else None


def _start_s(epochs: Sequence[Account]) -> float:
    return sum(epochs[0].times[kind].total_seconds() for kind in _STARTING) if epochs else 0.0


def need_of(plan: SweepPlan, trials: Iterable[TrialProgress]) -> Need | None:
    """
    Return the expected time and cost of a trial: the highest values that were measured in any trial. Before the first
    measurement, use the time and price from the sweep's plan. Return None if the plan does not have them either.
    """
    measured = [each for each in trials if each.epoch_s is not None and each.epochs_total]
    if measured:
        work_s = max((each.epoch_s or 0) * (each.epochs_total or 0) for each in measured)
        start_s, price = max(each.start_s for each in measured), max(each.usd_per_hour for each in measured)
    elif plan.work is not None:
        work_s, start_s, price = plan.work.total_seconds(), START.total_seconds(), plan.usd_per_hour
    else:
        return None
    hours = Decimal(repr((work_s + start_s) / 3600))
    return Need(timedelta(seconds=work_s), timedelta(seconds=work_s + start_s), hours * price)


# -- the next actions ------------------------------------------------------------------------------------------------


def next_actions(plan: SweepPlan, trials: Sequence[TrialProgress], time_left: timedelta | None = None) -> list[Action]:
    """
    Return the actions to take now. `trials` are the trials that have begun. `time_left` is the run time until the
    deadline; None if there is no deadline.

    At the deadline, all running trials are stopped. If the sweep has ended, the last action is `Over`.
    """
    running = [each for each in trials if each.outcome == "running"]
    if time_left is not None and time_left <= timedelta():
        late = [Stop(each.number, "the deadline of the sweep has come") for each in running if not each.asked_to_stop]
        return [*late, *([] if running else [_over(plan, trials, "its deadline has come")])]
    if (unknown := unknown_metric(plan, trials)) is not None:
        return [unknown]
    stops = [each for each in worst(plan, trials) if len(trials) < plan.trials or _makes_way(plan, trials, each)]
    begins, why_not = _begins(plan, trials, time_left)
    again = [] if len(trials) < plan.trials else second_chances(plan, trials, time_left)
    if not begins and not again and all(each.settled for each in trials):
        return [_over(plan, trials, why_not)]
    return [*stops, *begins, *again]


def _over(plan: SweepPlan, trials: Sequence[TrialProgress], reason: str) -> Over:
    return Over("" if len(trials) == plan.trials else reason)


def _begins(plan: SweepPlan, trials: Sequence[TrialProgress], time_left: timedelta | None) -> tuple[list[Begin], str]:
    """Return the trials to begin now, and the reason why no others can begin now; "" if all trials have begun."""
    if (reason := _all_fail(trials)) is not None:
        return [], reason
    need, begun, found = need_of(plan, trials), list(trials), list[Begin]()
    pilot = need is None and all(each.settled for each in trials)
    if need is None and not pilot and max(each.age for each in trials if not each.settled) < ALONE:
        return [], "the first trial has to show what a trial needs"
    if need is not None and time_left is not None and time_left < SPARE * need.time:
        return [], "the time to its deadline is too short for another trial"
    while len(begun) < plan.trials and not (found and pilot):
        free = plan.max_parallel - sum(not each.settled for each in begun)
        if free <= 0:
            return found, "as many trials run as are allowed at the same time"
        wanted_by = PILOT_IN if pilot else min(free, plan.trials - len(begun))
        share = _share(plan, need, _left(plan, begun), wanted_by, plan.trials - len(begun))
        if share is None:
            return found, f"${max(ZERO, _left(plan, begun)):.2f} are left, and another trial may need more"
        number = len(begun) + 1
        found.append(Begin(number, share, None if need is None else need.work))
        begun.append(TrialProgress(number=number, budget_usd=share))
    return found, ""


def _left(plan: SweepPlan, trials: Iterable[TrialProgress]) -> Decimal:
    return plan.budget_usd - held_usd(trials)


def held_usd(trials: Iterable[TrialProgress]) -> Decimal:
    """
    Return the part of the sweep's budget that is reserved for these trials: the costs of the settled ones, and the
    whole budgets of the others.
    """
    return sum((each.held_usd for each in trials), ZERO)


def _share(plan: SweepPlan, need: Need | None, left: Decimal, wanted_by: int, to_begin: int) -> Decimal | None:
    """
    Return the budget of the next trial; None if `left` is too little for one.

    `left` is divided equally among the next `wanted_by` trials. If each of them would get too little, it is divided
    among fewer trials.

    `need` is the expected time and cost of a trial. If it is known, the budget is at most `AMPLE` times this cost. If
    an equal share of `left` for each of the `to_begin` trials is larger, the budget is at most this share, or
    `GENEROUS` times the expected cost, whichever is less.
    """
    least = plan.least_usd if need is None else max(plan.least_usd, LEAST * need.usd)
    if plan.most_usd is not None:
        least = min(least, plan.most_usd)
    if left < least or left < CENT:
        return None
    share = left / max(1, min(wanted_by, int(left / least)))
    if need is not None:
        share = min(share, max(least, AMPLE * need.usd, min(left / to_begin, GENEROUS * need.usd)))
    return min(share, plan.most_usd or share).quantize(CENT, ROUND_DOWN)


def _all_fail(trials: Sequence[TrialProgress]) -> str | None:
    failed = sum(each.outcome == "failed" for each in trials)
    if failed < FAILED_MAX or any(each.epochs or each.outcome == "completed" for each in trials):
        return None
    return f"{failed} trials have failed, and no trial has completed an epoch"


# -- the worst trials ------------------------------------------------------------------------------------------------


def metric_of(plan: SweepPlan, trials: Iterable[TrialProgress]) -> str | None:
    """
    Return the metric by which trials are compared.

    If the user names no metric, choose one that trials have logged at the first comparison: `val_loss`, or else another
    loss, preferably a validation loss. Return None if no trial has logged a loss yet.
    """
    if plan.metric is not None:
        return plan.metric
    judged = (each for trial in trials for each in trial.epochs if each.epoch == (plan.grace_epochs or 1))
    names = sorted({name for each in judged for name in each.metrics if "loss" in name.lower()})
    return min(names, key=lambda name: (name != "val_loss", "val" not in name.lower(), len(name)), default=None)


def unknown_metric(plan: SweepPlan, trials: Sequence[TrialProgress]) -> Unknown | None:
    """
    Return `Unknown` if trials have to be compared now, but no trial has logged the metric that the user named; or, if
    the user named none, no trial has logged a loss. Otherwise return None.

    If only one trial has reached the first comparison, it may lack the metric because the value became NaN. So usually
    `Unknown` is returned only after a second trial has reached it. One trial is enough if it has logged a metric with a
    similar name: the user has then probably misspelled the name.
    """
    far = [trial for trial in trials if trial.last_epoch >= (plan.grace_epochs or 1)]
    if plan.metric is None:
        compared = plan.keep_one_in is not None and plan.trials > 1 and not _all_over(plan, trials)
        logged = not compared or metric_of(plan, trials) is not None
    else:
        logged = any(plan.metric in each.metrics for trial in trials for each in trial.epochs)
    if logged or not far:
        return None
    known = tuple(sorted({name for trial in far for each in trial.epochs for name in each.metrics}))
    found = Unknown(plan.metric or "", far[0].last_epoch, known)
    return found if len(far) >= min(2, plan.trials) or found.meant is not None else None


def _all_over(plan: SweepPlan, trials: Sequence[TrialProgress]) -> bool:
    return len(trials) == plan.trials and all(each.settled for each in trials)


def best_of(trial: TrialProgress, metric: str, *, maximize: bool) -> EndedEpoch | None:
    """Return the epoch with the trial's best value of the metric; None if the trial has not logged the metric."""
    logged = [each for each in trial.epochs if metric in each.metrics]
    return (max if maximize else min)(logged, key=lambda each: each.metrics[metric], default=None)


def worst(plan: SweepPlan, trials: Sequence[TrialProgress]) -> list[Stop]:
    """Return the running trials to stop because other trials are better, each with the reason."""
    metric = metric_of(plan, trials)
    if metric is None or plan.keep_one_in is None:
        return []
    logged = sorted(
        (each.at, trial.number, each.epoch, each.metrics.get(metric, nan)) for trial in trials for each in trial.epochs
    )
    first = grace_epochs(plan, trials)
    pruned = _pruned(tuple(entry[1:] for entry in logged), plan.keep_one_in, first, plan.maximize)
    going = [each for each in trials if each.outcome == "running" and not each.asked_to_stop and not _is_done(each)]
    last = {each.number: epoch for each in going for epoch in pruned.get(each.number, ()) if epoch > each.spared}
    return [Stop(number, _why(metric, logged, number, epoch, plan.maximize)) for number, epoch in last.items()]


def grace_epochs(plan: SweepPlan, trials: Sequence[TrialProgress]) -> int:
    """
    Return the number of epochs after which trials are first compared. The later the comparison, the fewer trials are
    stopped only because they start slowly.

    If the user does not set the number, it is as high as the sweep's budget and time are expected to allow, according
    to the first trial that has been measured.
    """
    if plan.grace_epochs is not None or plan.keep_one_in is None:
        return plan.grace_epochs or 1
    measured = next((each for each in trials if each.epoch_s and each.epochs_total), None)
    if measured is None:
        return 1
    epochs, epoch_s = measured.epochs_total or 1, measured.epoch_s or 0.0
    prices = [each.price_usd_per_hour for each in trials if each.price_usd_per_hour]
    usd_per_s = float(min(prices, default=ZERO)) / 3600  # not the first trial's: with a deadline, it begins on demand
    found = 1
    for first in range(2, epochs // plan.keep_one_in + 1):
        work_s = plan.trials * measured.start_s + epoch_s * _epochs_trained(
            plan.trials, plan.keep_one_in, first, epochs
        )
        late = plan.time is not None and MORE * work_s / plan.max_parallel > plan.time.total_seconds()
        if late or MORE * work_s * usd_per_s > float(plan.budget_usd):
            break
        found = first
    return found


def _epochs_trained(trials: int, keep_one_in: int, first: int, epochs: int) -> float:
    """Return how many epochs all trials together train, if each comparison keeps exactly one trial in `keep_one_in`."""
    left, at, total, upto = float(trials), 0, 0.0, first
    while at < epochs:
        total += left * (min(upto, epochs) - at)
        left, at, upto = max(1.0, left / keep_one_in), upto, upto * keep_one_in
    return total


def _is_done(trial: TrialProgress) -> bool:
    """
    Return True if the trial has trained all of its epochs. Such a trial is never stopped: its weights are final, and
    the remaining work costs almost nothing.
    """
    return trial.epochs_total is not None and trial.last_epoch >= trial.epochs_total


@lru_cache(maxsize=8)
def _pruned(
    logged: tuple[tuple[int, int, float], ...], keep_one_in: int, grace_epochs: int, maximize: bool
) -> dict[int, tuple[int, ...]]:
    """
    Return the trials that Optuna would stop, each with the epochs after which it would do so. A trial that was stopped
    and then continued is compared again, so a trial can have several such epochs.

    Optuna decides from `logged`, which has the trial number, epoch and value of everything that was logged, in order.
    """
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=grace_epochs, reduction_factor=keep_one_in)
    study = optuna.create_study(direction="maximize" if maximize else "minimize", pruner=pruner)
    asked = {number: study.ask() for number in sorted({number for number, _, _ in logged})}
    pruned: dict[int, tuple[int, ...]] = {}
    for number, epoch, value in logged:
        asked[number].report(value, epoch)
        if asked[number].should_prune():
            pruned[number] = (*pruned.get(number, ()), epoch)
    return pruned


def second_chances(plan: SweepPlan, trials: Sequence[TrialProgress], time_left: timedelta | None) -> list[CarryOn]:
    """
    Return the stopped trials that can be continued within the sweep's budget and deadline, the most promising first.

    A trial that has trained more epochs is more promising. Of two trials with the same number of epochs, the one that
    did better in the comparison after its last epoch is more promising.
    """
    metric, need = metric_of(plan, trials), need_of(plan, trials)
    free = plan.max_parallel - sum(not each.settled for each in trials)
    if not plan.resume_stopped or metric is None or need is None or free <= 0:
        return []
    if time_left is not None and time_left < SPARE * need.time:
        return []
    left, chosen = _left(plan, trials), list[CarryOn]()
    for each in sorted(_waiting(trials), key=lambda each: _standing(each, trials, metric, plan.maximize)):
        more = each.budget_usd - each.spent_usd
        if len(chosen) < free and more <= left and more >= _rest(each, need):
            chosen.append(CarryOn(each.number))
            left -= more
    return chosen


def _waiting(trials: Iterable[TrialProgress]) -> list[TrialProgress]:
    """Return the trials that the sweep has stopped and that are settled."""
    return [each for each in trials if each.settled and each.outcome == "stopped" and each.judged]


def _makes_way(plan: SweepPlan, trials: Sequence[TrialProgress], stop: Stop) -> bool:
    """
    Return True if this trial should be stopped even though no further trial will begin.

    In a sweep that never continues stopped trials, this is always True, because stopping a trial saves money. In a
    sweep that does, this is True only if a more promising stopped trial can use the money. Otherwise the sweep would
    immediately continue the trial that it has just stopped.
    """
    metric = metric_of(plan, trials)
    if not plan.resume_stopped or metric is None:
        return True
    stopped = next(each for each in trials if each.number == stop.number)
    left = _left(plan, trials) + stopped.held_usd - stopped.spent_usd
    own = _standing(stopped, trials, metric, plan.maximize)
    waiting = (each for each in _waiting(trials) if each.budget_usd - each.spent_usd <= left)
    return any(_standing(each, trials, metric, plan.maximize) < own for each in waiting)


def _rest(trial: TrialProgress, need: Need) -> Decimal:
    """Return the expected cost of the trial's remaining epochs."""
    total = trial.epochs_total or 0
    return need.usd * Decimal(max(0, total - trial.last_epoch)) / total if total else need.usd


def _standing(trial: TrialProgress, trials: Sequence[TrialProgress], metric: str, maximize: bool) -> tuple[int, float]:
    """Return a key to sort trials by: the more promising the trial, the lower the key."""
    sign, epoch = -1 if maximize else 1, trial.last_epoch
    at = [
        each.metrics[metric]
        for other in trials
        for each in other.epochs
        if each.epoch == epoch and metric in each.metrics
    ]
    own = trial.epochs[-1].metrics.get(metric) if trial.epochs else None
    if own is None:
        return 0, 1.0
    return -epoch, sum(sign * value < sign * own for value in at) / len(at)


def _why(
    metric: str, logged: Sequence[tuple[datetime, int, int, float]], number: int, epoch: int, maximize: bool
) -> str:
    """
    Describe why a trial was stopped after `epoch`: the trial's value of the metric, its rank among the trials that had
    completed this epoch by then, and the best value among these trials.
    """
    at, own = next((at, value) for at, who, ended, value in logged if (who, ended) == (number, epoch))
    after = f"after epoch {epoch}"
    if own != own:
        return f"it has logged no finite {metric} {after}"
    values = [value for when, _, ended, value in logged if ended == epoch and when <= at and value == value]
    better = sum(value > own if maximize else value < own for value in values)
    best = max(values) if maximize else min(values)
    place = f"no. {better + 1} of {count_of(len(values), 'trial')}"
    return f"{metric} {own:.4g} {after} is {place}; the best has {best:.4g}"
