"""
Makes the rows that `spotrun status --json` prints, one for each run. It imports few modules at first, because the
command is used often and has to be fast.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spotrun.errors import (
    LedgerDamaged,
    LedgerFlooded,
    RunCopied,
    RunMisnamed,
    SpecInvalid,
    SpotrunError,
    StoreError,
    StoreUnavailable,
    Unreckonable,
)

if TYPE_CHECKING:
    from spotrun.account.spending import BudgetForecast
    from spotrun.folder.final_status import RunStatus
    from spotrun.folder.status_objects import Blindness
    from spotrun.run.state import RunState
    from spotrun.runs.open_run import OpenRun, Unreadable

FINAL_FOR_S = 60.0
"""
Minimum seconds of system time between two readings of a run that has ended. Such a run changes only if a user resumes
it.
"""
STATES: dict[type[SpotrunError], str] = {
    LedgerDamaged: "damaged",
    LedgerFlooded: "flooded",
    RunCopied: "copied",
    RunMisnamed: "misnamed",
}
"""The displayed state of a run that cannot be read, by the type of the error."""


class StatusRows:
    """Makes the rows of runs, as often as needed."""

    def __init__(self) -> None:
        self._final: dict[str, tuple[float, dict[str, Any]]] = {}
        """The rows of runs that have ended, by address, each with the system time at which it was made."""

    def of(self, runs: Sequence[OpenRun]) -> list[dict[str, Any]]:
        from concurrent.futures import ThreadPoolExecutor

        from spotrun.runs.open_run import OPENERS

        with ThreadPoolExecutor(OPENERS) as pool:
            return list(pool.map(self._row, runs))

    def _row(self, run: OpenRun) -> dict[str, Any]:
        """Return the row of a run. If its figures cannot be computed, the row shows the error instead."""
        from spotrun.report.machine_readable import json_object

        made_s, row = self._final.get(run.uri, (0.0, {}))
        if row and time.monotonic() - made_s < FINAL_FOR_S:
            return row
        base = {"run": run.id, "name": run.created.name, "started_at": run.created.clock_epoch, "uri": run.uri}
        try:
            facts, is_final = _facts(run)
        except ArithmeticError as error:
            facts, is_final = _unreadable_facts(Unreckonable(error, run.typed)), False
        row = json_object(str, **base, **facts)
        if is_final:
            self._final[run.uri] = (time.monotonic(), row)
        return row


def unreadable_row(run: Unreadable) -> dict[str, Any]:
    facts = {"run": run.name, "name": run.name.rpartition("-")[0], "started_at": "", "uri": run.uri}
    return facts | _unreadable_facts(run.error)


def _facts(run: OpenRun) -> tuple[dict[str, Any], bool]:
    """
    Return the facts that the list shows about a run, and True if they are final. If the run has ended and a runner has
    written its final status, take them from there, because reading a ledger is slow.
    """
    from spotrun.folder.final_status import final_status
    from spotrun.store.retrying import persist

    status = persist(run.final_status)
    if status is None:
        try:
            state = run.ledger.refresh()
            status = final_status(state)
            if status is None:
                return _facts_so_far(run, state), False
        except StoreUnavailable:
            raise
        except StoreError as error:
            return _unreadable_facts(error), False
    return _final_facts(run, status), True


def _final_facts(run: OpenRun, status: RunStatus) -> dict[str, Any]:
    from spotrun.account.spending import BudgetForecast
    from spotrun.report.tables import plain
    from spotrun.run.reasons import in_one_line

    budget_usd = run.created.budget_usd
    budget = None if budget_usd is None else BudgetForecast(budget_usd, status.cost_usd)
    ended = dict.fromkeys(("attended", "next", "blind_since", "usage", "data_wait"))
    ended |= {"members": [], "detail": plain(in_one_line(status.detail))}
    return _status_facts(run, status) | _budget_facts(budget) | ended


def _facts_so_far(run: OpenRun, state: RunState) -> dict[str, Any]:
    from spotrun.account.summary import summarise
    from spotrun.folder.agent_statuses import AgentStatuses
    from spotrun.folder.final_status import run_status
    from spotrun.report.budget import budget_forecast
    from spotrun.report.members import members_now
    from spotrun.report.tables import plain

    now = run.clock.now()
    summary = summarise(state, now)
    agents = AgentStatuses(run.store)
    lead = agents.current(state)
    budget = budget_forecast(state, summary, now, agents.epochs_total(state))
    attended = _attended(run)
    blind = _blind(run) if attended else None
    told = [_detail(state, budget), "" if blind is None else _told_blind(run, blind)]
    live = {
        "attended": attended,
        "blind_since": None if blind is None else blind.since,
        "usage": None if lead is None else lead.usage,
        "data_wait": None if lead is None else lead.data_wait,
        "members": [member.to_dict() for member in members_now(state, agents.of)],
        "next": _next(run, state, attended=attended is not False),
        "detail": plain("; ".join(filter(None, told))),
    }
    return _status_facts(run, run_status(state, summary, now)) | _budget_facts(budget) | live


def _status_facts(run: OpenRun, status: RunStatus) -> dict[str, Any]:
    from spotrun.report.gaps import for_programs

    return {
        "state": status.state,
        "step": status.step,
        "epochs_completed": status.epochs_completed,
        "interruptions": status.interruptions,
        "cost_usd": status.cost_usd,
        "prices_usd_per_hour": status.prices_usd_per_hour,
        "simulated": run.created.simulated,
        "time_scale": run.created.time_scale,
        "files": status.files,
        "voids": status.voids,
        "forged": status.forged,
        "deadline_at": run.created.deadline_at,
        "deadline_lost": status.deadline_lost,
        "not_carried": for_programs(status.gaps),
        "usd_per_kept_hour": status.usd_per_kept_hour,
        "keeps_nothing": status.keeps_nothing,
        "unprotected": status.unprotected,
    }


def _budget_facts(budget: BudgetForecast | None) -> dict[str, Any]:
    """Return the budget forecast as part of the JSON output. Epochs count from 1."""
    if budget is None:
        return dict.fromkeys(("budget_usd", "budget_passed_at", "budget_passed_in_epoch", "budget_needed_usd"))
    return {
        "budget_usd": budget.budget_usd,
        "budget_passed_at": budget.passes_at,
        "budget_passed_in_epoch": None if budget.epoch is None else budget.epoch + 1,
        "budget_needed_usd": budget.needs_usd,
    }


def _blind(run: OpenRun) -> Blindness | None:
    """Return the time at which the cloud stopped answering the run's runner, and the reason; None if it answers."""
    from spotrun.folder.status_objects import RUNNER_KEY, RunnerStatus, read_status

    status = read_status(run.store, RUNNER_KEY, RunnerStatus)
    return None if status is None else status.blind


def _told_blind(run: OpenRun, found: Blindness) -> str:
    from spotrun.clock import zone
    from spotrun.report.tables import plain
    from spotrun.report.unattended import blind

    return plain(blind(found.why, found.since, run.clock.now(), zone(run.created.time_scale)))


def _next(run: OpenRun, state: RunState, *, attended: bool) -> str | None:
    """
    Return a description of the next decision about the run. Return None if the run has ended, or if its job was written
    for another version of spotrun and cannot be read.
    """
    from spotrun.folder.store_capacity import shortage
    from spotrun.report.next_decision import left_undone, next_decision
    from spotrun.report.tables import plain

    if state.terminal is not None:
        return None
    try:
        coming = next_decision(state, run.spec, run.clock.now(), shortage(run.store, state))
        return plain(coming if attended else left_undone(coming, run.typed, run.created))
    except SpecInvalid:
        return None


def _detail(state: RunState, budget: BudgetForecast | None) -> str:
    from spotrun.report.budget import budget_line
    from spotrun.run.reasons import in_one_line

    if state.terminal is not None:
        return in_one_line(state.terminal.detail)
    lost = ["the deadline cannot be met"] if state.deadline_lost is not None else []
    spent = [budget_line(budget)] if budget is not None else []
    alone = [f"only its own timer would end {found.instance_id}: {found.unguarded}" for found in state.unguarded]
    return "; ".join(lost + spent + alone)


def _unreadable_facts(error: SpotrunError) -> dict[str, Any]:
    state = STATES.get(type(error), "unreadable")
    return {"state": state, "detail": error.message, "hint": error.hint}


def _attended(run: OpenRun) -> bool | None:
    """Return True if a runner takes care of the run, False if none does, and None if the run has ended."""
    from spotrun.runs.open_run import attended

    return None if run.ledger.state.terminal is not None else attended(run)
