"""
Collects the data for a sweep's report. The user's request comes from the sweep's record, and everything else from the
ledgers of its runs.
"""

from __future__ import annotations

from spotrun.errors import SpecInvalid, StoreError
from spotrun.folder.sweep_record import key_of
from spotrun.runs.sweeps import NamedSweep
from spotrun.spec.trials import combinations, read_grid
from spotrun.sweep.attending import Attendant
from spotrun.sweep.report import SweepShown
from spotrun.sweep.rungs import SweepPlan, trials_of


def sweep_shown(sweep: NamedSweep) -> SweepShown:
    """
    Return the current state of the sweep, whether or not a process takes care of it.

    Raises:
        SpecInvalid: an older version of spotrun began the sweep, and did not record its budget.
        StoreError: the sweep's record in the store is malformed.
    """
    record = sweep.record
    if record.budget_usd is None:
        raise SpecInvalid(
            f"the sweep {record.name} was begun by an older version of spotrun, which recorded no budget and no metric",
            hint="to see its report, repeat the command that began the sweep",
        )
    params = _params(sweep)
    plan = SweepPlan(
        trials=record.trials,
        budget_usd=record.budget_usd,
        max_parallel=1,
        grace_epochs=record.judged_from,
        metric=record.metric,
        maximize=record.maximize,
    )
    attendants = [Attendant(run, record.name, number, params[number - 1]) for number, run in enumerate(sweep.runs(), 1)]
    trials = tuple(each.shown() for each in attendants)
    is_over = sweep.is_over([each.run for each in attendants])
    ended = ("it was asked to stop" if record.stopped_by else "") if is_over else None
    simulated = any(each.run.created.simulated for each in attendants)
    return SweepShown(record.name, plan, trials, tuple(params), simulated, ended)


def _params(sweep: NamedSweep) -> list[dict[str, str]]:
    """Return the parameters of each trial, computed from the flags in the sweep's record."""
    record = sweep.record
    try:
        grid = read_grid(record.wanted["--grid"])
        count = min(record.trials, combinations(grid))
        params = trials_of(grid, count, record.wanted["--seed"])
    except (SpecInvalid, KeyError, TypeError, ValueError, AttributeError):
        params = []
    if len(params) < record.trials:
        hint = "to see its report, repeat the command that began the sweep"
        raise StoreError(f"{sweep.store.uri}/{key_of(record.name)} does not list the sweep's trials", hint=hint)
    return params
