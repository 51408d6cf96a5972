"""Checks a sweep before renting anything. Then starts the sweep, or continues it if it exists already."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from spotrun import address
from spotrun.clouds.registry import clock_of, cloud_of
from spotrun.errors import SpecInvalid, SpotrunError
from spotrun.folder import workdir
from spotrun.folder.sweep_record import FOLDER, SweepRecord, create_sweep, replace_sweep
from spotrun.policy.deadline import deadline_at
from spotrun.policy.money import life_of
from spotrun.runs.asking import confirm, say
from spotrun.runs.background import Background, log_named
from spotrun.runs.first_look import Market, look_at_market, readable_store
from spotrun.runs.flags import read_flag
from spotrun.runs.known import require_known
from spotrun.runs.locks import alone, lock_of
from spotrun.runs.open_run import OpenRun, default_store
from spotrun.runs.prepared import Prepared, billed, prepare
from spotrun.runs.sweeps import NamedSweep, sweep_named
from spotrun.spec.file import load_spec, placed
from spotrun.spec.model import RunSpec
from spotrun.spec.trials import combinations, read_grid, trial_spec, with_params
from spotrun.spec.values import read_deadline, read_name
from spotrun.store.opening import open_store
from spotrun.sweep.attending import Sweeping, SweepJob
from spotrun.sweep.report import SweepShown, params_in_words
from spotrun.sweep.rungs import ALONE, LEAST, SPARE, Begin, SweepPlan, need_of, next_actions, trials_of
from spotrun.units import count_of, format_duration, parse_usd, plain_usd, to_the_second

SUFFIX = "-sweep"
RATES = ("acc", "auc", "f1", "iou", "bleu", "rouge", "precision", "recall", "psnr", "r2")
"""
Parts of the name of a metric for which larger values are probably better. For such a metric, the user has to say which
values are better.
"""
NAME_MAX = 57
"""
Maximum length of a sweep's name, in characters. The name of a run of the sweep is longer, because it ends with the
trial's number.
"""
KEEP_EXACT = 0.01
BUDGET_EXAMPLE = "--budget 40"
FORGOTTEN_AFTER = timedelta(minutes=10)


class SweepFlags(NamedTuple):
    grid: tuple[str, ...]
    budget: str | None
    deadline: str | None
    sample: int | None
    reduction_factor: float
    max_parallel: int
    metric: str | None
    mode: str | None
    grace_epochs: int | None
    resume_stopped: bool
    seed: int
    name: str | None
    store: str | None


class Outcome(NamedTuple):
    """
    The result of `spotrun sweep`: the report to show, and the error with which the command ends. Both are None if
    another process now takes care of the sweep.
    """

    shown: SweepShown | None
    error: SpotrunError | None


class RequestedSweep(NamedTuple):
    """The sweep that the flags and the job describe. `digest` is the digest of the job."""

    name: str
    wanted: SweepJob
    digest: str


def attended(
    spec_path: Path,
    arguments: Sequence[str],
    wish: SweepFlags,
    *,
    yes: bool,
    detach: bool,
    background: bool,
    dry_run: bool,
) -> Outcome:
    """
    Begin the sweep, or continue it if it exists already. Then take care of it until it is over, or start a process in
    the background that takes care of it. With `dry_run`, only show what the first trial would rent.

    Raises:
        SpecInvalid: the sweep cannot begin as requested; nothing was rented.
    """
    asked = _asked(spec_path, arguments, wish)
    deadline_s = _deadline_s(asked.wanted.spec, wish.deadline)
    if (sweep := _found(asked)) is None or sweep.run(1) is None:
        plan = _checked(spec_path, asked, deadline_s, dry_run=dry_run)
        if dry_run:
            return Outcome(None, None)
        count = count_of(len(asked.wanted.params), "trial")
        default = not billed(asked.wanted.spec)
        confirm(
            yes, f"Begin {count} for ${plain_usd(plan.budget_usd)}?", default=default, declined="nothing was launched"
        )
    elif dry_run:
        raise SpecInvalid(
            f"the sweep {asked.name} has begun already", hint="without --dry-run, the same command continues it"
        )
    else:
        plan, _ = _with_prices(asked)
    asked = asked._replace(wanted=asked.wanted._replace(plan=plan))
    with alone(_lock_path(asked), _busy(asked.name)):
        sweep = _found(asked)
        runs = [] if sweep is None else sweep.runs("runner")
        if sweep is None or _was_removed(sweep, runs):
            sweep = _created(asked, wish, deadline_s, in_place_of=sweep)
        else:
            _carry_on(sweep, runs, asked, wish, deadline_s)
            for number, run in enumerate(runs, 1):
                sweep.begin(run, number)  # it has no record if the command that created it was killed too soon
        outcome = None if detach else _attended(Sweeping(sweep, asked.wanted, runs), background=background)
    if outcome is None:
        _leave_behind(sweep)
    return outcome or Outcome(None, None)


def _attended(sweeping: Sweeping, *, background: bool) -> Outcome | None:
    """Take care of the sweep, and return its result. Return None if a background process has to take over."""
    try:
        is_over = sweeping.attend(background=background)
    except SpotrunError as error:
        return Outcome(sweeping.shown(), error)
    return Outcome(sweeping.shown(), None) if is_over else None


def _busy(name: str) -> SpotrunError:
    return SpotrunError(
        f"another process on this machine takes care of the sweep {name}",
        hint=f"see `spotrun status {name}`; `spotrun stop {name}` stops it",
    )


# -- the requested sweep ---------------------------------------------------------------------------------------------


def _asked(spec_path: Path, arguments: Sequence[str], wish: SweepFlags) -> RequestedSweep:
    grid = read_grid(wish.grid)
    if wish.budget is None:
        raise SpecInvalid("a sweep needs a budget for all of its trials", hint=BUDGET_EXAMPLE)
    budget_usd = read_flag(
        "--budget", parse_usd, wish.budget, BUDGET_EXAMPLE if wish.budget.strip("0.") == "" else None
    )
    if wish.deadline is not None:
        read_flag("--deadline", read_deadline, wish.deadline)
    keep_one_in = _keep_one_in(wish.reduction_factor)
    overrides = {"checkpoint.uri": None if wish.store is None else address.absolute(wish.store)}
    spec = load_spec(spec_path, overrides, default_store(), arguments)
    name = read_flag("--name", read_name, _default_name(spec) if wish.name is None else wish.name)
    if len(name) > NAME_MAX:
        raise SpecInvalid(f"--name {name!r} is longer than {NAME_MAX} characters", hint="give a shorter one")
    with placed(spec_path, overrides):
        params = trials_of(grid, min(combinations(grid), wish.sample or combinations(grid)), wish.seed)
        with_params(spec, params[0])  # all trials have the same names
    metric, maximize = _metric(spec, wish)
    plan = SweepPlan(
        trials=len(params),
        budget_usd=budget_usd,
        max_parallel=wish.max_parallel,
        keep_one_in=keep_one_in,
        grace_epochs=wish.grace_epochs,
        resume_stopped=wish.resume_stopped,
        metric=metric,
        maximize=maximize,
        most_usd=spec.budget.max_usd,
        work=spec.policy.expected_work,
    )
    return RequestedSweep(name, SweepJob(spec, params, plan), _digest(spec))


def _default_name(spec: RunSpec) -> str:
    return f"{spec.name[: NAME_MAX - len(SUFFIX)]}{SUFFIX}"


def _keep_one_in(factor: float) -> int | None:
    """
    Return the reduction factor n: one trial in n continues after each comparison. Return None if the user wants no
    comparisons.

    In earlier versions, the flag was called `--stop-worst`, and its value was the fraction of trials to stop. Such a
    value is still accepted: 0.67 stops two trials in three, so n is 3.

    Raises:
        SpecInvalid: `factor` is neither a whole number n of at least 2, nor 1 - 1/n for such an n.
    """
    if factor == 0:
        return None
    if factor >= 2 and factor.is_integer():
        return int(factor)
    if 0 < factor < 1:
        keep = round(1 / (1 - factor))
        if keep >= 2 and abs(1 - 1 / keep - factor) <= KEEP_EXACT:
            return keep
    raise SpecInvalid(
        f"--reduction-factor {factor:g} is neither 0 nor a whole number of at least 2",
        hint="at each comparison, 2 keeps the better half of the trials, 3 the best third, 4 the best quarter; "
        "0 keeps all trials",
    )


def _metric(spec: RunSpec, wish: SweepFlags) -> tuple[str | None, bool]:
    """
    Return the metric, and whether larger values are better. The metric is None if neither a flag nor the job names one.
    """
    if wish.mode not in (None, "min", "max"):
        raise SpecInvalid(f"--mode does not accept {wish.mode!r}", hint="use --mode min or --mode max")
    kept = spec.checkpoint.keep_best
    metric = wish.metric or (None if kept is None else kept.metric)
    if wish.mode is not None:
        return metric, wish.mode == "max"
    if kept is not None and metric == kept.metric:
        return metric, kept.mode == "max"
    if metric is not None and any(word in metric.lower() for word in RATES):
        raise SpecInvalid(f"is a higher {metric} better, or a lower one?", hint="use --mode max or --mode min")
    return metric, False


def _digest(spec: RunSpec) -> str:
    text = json.dumps({**spec.to_dict(), "workdir": ""}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _deadline_s(spec: RunSpec, text: str | None) -> float | None:
    """
    Return the run time from now until the deadline, in seconds; None if there is no deadline.

    Raises:
        SpecInvalid: the deadline has passed, or is too early for a trial to finish.
    """
    if text is None:
        return None
    now = datetime.now(UTC)
    left = deadline_at(read_flag("--deadline", read_deadline, text), now) - now
    if left <= timedelta():
        raise SpecInvalid(f"--deadline {text} has passed", hint="give a later one, like 24h")
    if left <= spec.boot + (spec.policy.expected_work or timedelta()):
        raise SpecInvalid(f"--deadline {text} is too early for a trial to finish", hint="give a later one, like 24h")
    return left.total_seconds()


# -- before anything is rented ---------------------------------------------------------------------------------------


def _checked(spec_path: Path, asked: RequestedSweep, deadline_s: float | None, *, dry_run: bool) -> SweepPlan:
    """
    Check that the first trial can begin. Show the suitable offerings and the number of trials. Return the sweep's plan
    with the current prices added.

    Raises:
        SpecInvalid, CloudError, StoreError: the first trial could not begin as requested.
    """
    wanted = asked.wanted
    with placed(spec_path):
        plan, market = _with_prices(asked)
        first = with_params(wanted.spec, wanted.params[0])
        left = None if deadline_s is None else timedelta(seconds=deadline_s)
        begins = [each for each in next_actions(plan, [], left) if isinstance(each, Begin)]
        if not begins:
            raise _no_trial(plan, left)
        trial = trial_spec(first, f"{asked.name}-1", begins[0].budget_usd, begins[0].work, left)
        prepared = prepare(trial, spec_path, dry_run=dry_run, world=market.world)
    prepared.show(_short_life(prepared, begins[0]))
    count = count_of(len(wanted.params), "trial")
    params = params_in_words(wanted.params[0])
    print(f"{asked.name}: {count}, at most {plan.max_parallel} at once, the first with {params}.")
    return plan


def _short_life(prepared: Prepared, first: Begin) -> list[str]:
    """
    Return a note if the first trial's budget reserves an instance for less than the time for which that trial may run
    alone. Then it probably pays for several starts, and perhaps for no epoch.
    """
    life = life_of(prepared.market.facts, prepared.chosen)
    assert life is not None, prepared.chosen  # otherwise it would not be the first choice
    if first.work is not None or life >= ALONE:
        return []
    reserves = (
        f"the first trial's budget of ${plain_usd(first.budget_usd)} reserves only {to_the_second(life)} of an instance"
    )
    return [f"{reserves} at its maximum price, its start included: raise --budget, or lower resources.max_price"]


def _no_trial(plan: SweepPlan, left: timedelta | None) -> SpecInvalid:
    """Return the error for a sweep in which not even the first trial could begin."""
    need = need_of(plan, [])
    if need is not None and left is not None and left < SPARE * need.time:
        what = f"--deadline leaves {format_duration(left)}, but a trial may take {format_duration(need.time)}"
        return SpecInvalid(what, hint="give a later deadline, or correct policy.expected_work")
    usd = plan.least_usd if need is None else max(plan.least_usd, LEAST * need.usd)
    return SpecInvalid(
        f"--budget is too small for one trial, which may cost ${usd:.2f}",
        hint="raise the budget, or make a trial cheaper",
    )


def _with_prices(asked: RequestedSweep) -> tuple[SweepPlan, Market]:
    """
    Look up the current market. Return the plan with the market's prices added, and the market itself.

    Raises:
        SpecInvalid: the budget does not pay for any trial, or no suitable offering exists.
    """
    plan, spec = asked.wanted.plan, asked.wanted.spec
    trial = trial_spec(spec, f"{asked.name}-1", plan.budget_usd)
    market = look_at_market(trial, cloud_of(trial), readable_store(spec.checkpoint.uri))
    offerings, least = market.offerings, market.least_usd
    if least is not None and least > min(plan.budget_usd, plan.most_usd or plan.budget_usd):
        flag = "--budget" if least > plan.budget_usd else "budget.max_usd of the job"
        raise SpecInvalid(
            f"{flag} is too small: a trial needs at least ${plain_usd(least)} to begin",
            hint=f"raise it to at least {plain_usd(least)}",
        )
    dearest = max(each.price_usd_per_hour for each in offerings) * spec.num_nodes
    return replace(plan, least_usd=max(plan.least_usd, least or plan.least_usd), usd_per_hour=dearest), market


# -- the sweep itself ------------------------------------------------------------------------------------------------


def _found(asked: RequestedSweep) -> NamedSweep | None:
    """Return the store's sweep of the requested name; None if there is none."""
    return sweep_named(asked.name, asked.wanted.spec.checkpoint.uri)


def _was_removed(sweep: NamedSweep, runs: Sequence[OpenRun]) -> bool:
    """
    Return True if the sweep began more than FORGOTTEN_AFTER ago and has no runs, which means that the user has deleted
    them. The sweep's name is then free for a new sweep.
    """
    return not runs and datetime.now(UTC) - sweep.record.began_at > FORGOTTEN_AFTER


def _wanted_by(asked: RequestedSweep, wish: SweepFlags) -> dict[str, Any]:
    """
    Return the values that must not change when the sweep is continued, keyed by their flags. The values of all other
    flags may change.
    """
    return {"--grid": list(wish.grid), "--sample": wish.sample, "--seed": wish.seed, "the job": asked.digest}


def _created(
    asked: RequestedSweep, wish: SweepFlags, deadline_s: float | None, in_place_of: NamedSweep | None
) -> NamedSweep:
    """
    Create the sweep by writing its record. This replaces the record of `in_place_of`, an earlier sweep of the same name
    whose runs were deleted.

    Raises:
        SpotrunError: another machine has just begun a sweep of this name.
    """
    store = open_store(asked.wanted.spec.checkpoint.uri)
    record = SweepRecord(
        name=asked.name,
        uid=secrets.token_hex(8),
        began_at=datetime.now(UTC),
        wanted=_wanted_by(asked, wish),
        deadline=wish.deadline or "",
        deadline_s=deadline_s,
        recorded=True,
        **_as_asked(asked),
    )
    if in_place_of is not None:
        replace_sweep(store, record)
    elif not create_sweep(store, record):
        raise SpotrunError(
            f"another machine has just begun a sweep {asked.name} in {store.uri}",
            hint="give a different --name for a second sweep; the same command continues the other machine's sweep",
        )
    return NamedSweep(store, record)


def _as_asked(asked: RequestedSweep) -> dict[str, Any]:
    """
    Return the fields of the sweep's record that depend only on the job and the flags. A user who continues the sweep
    may change some of them.
    """
    plan = asked.wanted.plan
    return {
        "time_scale": clock_of(asked.wanted.spec).scale,
        "trials": len(asked.wanted.params),
        "budget_usd": plan.budget_usd,
        "metric": plan.metric,
        "maximize": plan.maximize,
        "judged_from": plan.grace_epochs,
    }


def _carry_on(
    sweep: NamedSweep, runs: Sequence[OpenRun], asked: RequestedSweep, wish: SweepFlags, deadline_s: float | None
) -> None:
    """
    Continue the sweep with the current flags. If `--deadline` has the same value as before, such as `8h`, the deadline
    does not change: the eight hours do not begin again.

    If the sweep has runs that are not known on this machine, the user has to confirm that these runs are their own.
    `--yes` is not enough for that, because anyone with access to the store could have changed the record that names the
    runs.

    Raises:
        SpecInvalid: the existing sweep of this name has another grid, sample, seed or job, or one of its runs belongs
            to another user.
    """
    record, now = sweep.record, _wanted_by(asked, wish)
    changed = [flag for flag, value in now.items() if record.wanted.get(flag) != value]
    if changed:
        was = "; ".join(_was(flag, record.wanted.get(flag)) for flag in changed)
        raise SpecInvalid(
            f"there is already a sweep {record.name}, and {was}",
            hint="give a new sweep a different --name; to continue the existing sweep, give the same command as before",
        )
    for run in runs:
        require_known(run, yes=False)
    spec = asked.wanted.spec
    if runs and runs[0].created.workdir_sha256 != workdir.digest_of(Path(spec.workdir), sweep.store.uri):
        say(
            f"note: files of the work folder have changed since {runs[0].id} was launched; trials that begin now train"
            " the changed files, and a sweep with a different --name trains all of its trials with them"
        )
    if record.deadline != (wish.deadline or "") or not runs:
        passed_s = (datetime.now(UTC) - record.began_at).total_seconds() * record.time_scale
        until_s = None if deadline_s is None else passed_s + deadline_s
        record = replace(record, deadline=wish.deadline or "", deadline_s=until_s)
    record = replace(record, **_as_asked(asked))
    if record != sweep.record:
        sweep.keep(record)
    if sweep.record.stopped_by:
        sweep.go_on()


def _was(flag: str, value: object) -> str:
    if not flag.startswith("--"):
        return f"{flag} was different in it"
    if value is None:
        return f"it had no {flag}"
    return f"its {flag} was {' '.join(value) if isinstance(value, list) else value}"


def _lock_path(asked: RequestedSweep) -> Path:
    """
    Return the path of the sweep's lock. If the store is a folder, the lock is in that folder, where all users of the
    store find the same lock.
    """
    place = asked.wanted.spec.checkpoint.place
    if isinstance(place, str):
        return Path(address.absolute(place)) / FOLDER / f".{asked.name}.lock"
    return lock_of(f"sweep-{asked.name}-{hashlib.sha256(str(place).encode()).hexdigest()[:16]}")


def _leave_behind(sweep: NamedSweep) -> None:
    """Start the same command again as a background process, which takes care of the sweep."""
    name, place = sweep.record.name, address.parse(sweep.store.uri)
    log = Path(place) / FOLDER / f"{name}.log" if isinstance(place, str) else log_named(f"sweep-{name}")
    words = [word for word in sys.argv[1:] if word not in ("-d", "--detach", "-y", "--yes", "--foreground")]
    at = words.index("--") if "--" in words else len(words)
    words[at:at] = ["--yes", "--foreground"]  # the user has already agreed to the trials
    what = Background(f"the background process of the sweep {name}", log, f"spotrun stop {sweep.typed}", os.getcwd())
    what.start(words, otherwise="repeat the command")
    print(f"a background process takes care of {name} ({log}); see `spotrun status {sweep.typed}`")
