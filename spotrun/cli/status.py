"""`spotrun status`"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotrun.cli.options import JsonOption, StoreOption, print_json
from spotrun.errors import (
    LedgerDamaged,
    LedgerFlooded,
    RunCopied,
    RunMisnamed,
    RunNotFound,
    SpecInvalid,
    SpotrunError,
    StoreError,
    StoreUnavailable,
    Unreckonable,
)
from spotrun.runs.completion import run_names

if TYPE_CHECKING:
    from spotrun.account.spending import BudgetForecast
    from spotrun.folder.final_status import RunStatus
    from spotrun.folder.status_objects import Blindness
    from spotrun.run.state import RunState
    from spotrun.runs.open_run import OpenRun, Unreadable


ENDED = ("completed", "stopped", "failed")
LOOK_AGAIN_S = 2.0
"""Seconds of system time between two refreshes of `-w`."""
STATES: dict[type[SpotrunError], str] = {
    LedgerDamaged: "damaged",
    LedgerFlooded: "flooded",
    RunCopied: "copied",
    RunMisnamed: "misnamed",
}
"""The displayed state of a run that cannot be read, by the type of the error."""


def status(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="List only runs whose name or id begins with NAME. If NAME is a sweep, list its runs.",
            autocompletion=run_names,
        ),
    ] = None,
    store: StoreOption = None,
    still_open: Annotated[bool, typer.Option("--open", help="List only runs that have not ended.")] = False,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="List only the N most recent runs.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep the list up to date until all runs have ended.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List all runs, newest first."""
    from spotrun.address import DEFAULT_STORE
    from spotrun.runs.open_run import look_in
    from spotrun.runs.sweeps import sweep_meant

    if watch and as_json:
        raise SpecInvalid("--watch and --json cannot be combined", hint="leave out one of them")
    runs, unreadable = look_in(store or DEFAULT_STORE)
    sweep = None if name is None else sweep_meant(name, store)
    trials = set[str]() if sweep is None else {run.id for run in sweep.runs()}
    named = _named(runs, name, store) if sweep is None else [run for run in runs if run.id in trials]
    damaged = [_unreadable_row(each) for each in unreadable if each.name.startswith(name or "")]
    if name is not None and not named and not damaged and sweep is None:
        message = f"no run's name or id begins with {name!r} in {store or DEFAULT_STORE}"
        raise RunNotFound(message, hint="`spotrun status` lists the runs; --store names another store")
    newest_first = sorted(named, key=lambda run: run.created.clock_epoch, reverse=True)
    if still_open:
        newest_first = [run for run, row in zip(newest_first, _rows(newest_first), strict=True) if _is_open(row)]
    newest_first = newest_first[:last]
    rows = _watch(newest_first, damaged) if watch else _rows(newest_first) + damaged
    if as_json:
        print_json(rows)
    elif not rows and sweep is not None:
        print(f"no trial of the sweep {name} has begun")
    elif not rows and runs:
        print(f"each run in {store or DEFAULT_STORE} has ended")
    elif not rows:
        print(f"no runs in {store or DEFAULT_STORE}; start one with `spotrun launch JOB.yaml`")
        print("`spotrun init SCRIPT.py` writes a first JOB.yaml for a script")
        _name_other_stores(store)
    elif not watch:
        _print_table(rows)
    if sweep is not None and rows and not (as_json or watch):
        print(sweep.in_a_line(sweep.runs()))
    _refuse_damage(rows)


def _named(runs: list[OpenRun], name: str | None, store: str | None) -> list[OpenRun]:
    """
    Return the runs whose name or id is `name`. If there are none, return those whose name or id begins with it. If
    there are none either, and no store is named, return those that this machine knows in other stores.
    """
    from spotrun.runs.open_run import known_elsewhere

    exactly = [run for run in runs if name in (None, run.id, run.created.name, run.created.uid)]
    begin = [run for run in runs if name and name in (run.id[: len(name)], run.created.uid[: len(name)])]
    return exactly or begin or (known_elsewhere(name) if name and store is None else [])


def _name_other_stores(store: str | None) -> None:
    """Name the other stores with runs that this machine knows, if the user named no store."""
    from spotrun.address import DEFAULT_STORE, absolute
    from spotrun.report.tables import plain
    from spotrun.runs.known_record import known_addresses

    known = {uri.rpartition("/")[0] for uri in known_addresses()} if store is None else set[str]()
    for other in sorted(known - {absolute(DEFAULT_STORE)}):
        print(f"this machine knows runs in another store: spotrun status --store {plain(other)}")


def _is_open(row: dict[str, Any]) -> bool:
    return row["state"] not in ENDED


def _watch(runs: list[OpenRun], damaged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Show the runs until all have ended, and return the last rows. Ctrl-C ends only this display."""
    from spotrun.report.watching import watching

    with watching() as view:
        while True:
            rows = _rows(runs) + damaged
            view.show(rows)
            if all(row.get("attended") is None for row in rows):
                return rows
            time.sleep(LOOK_AGAIN_S)


def _refuse_damage(rows: list[dict[str, Any]]) -> None:
    """
    Raise an error if the ledger of a listed run is damaged, or if a listed folder is a copy of another run's folder.
    The error gives the command its exit code.
    """
    from spotrun.units import count_of

    damaged = [row for row in rows if row["state"] == "damaged"]
    if damaged:
        names = ", ".join(row["run"] for row in damaged)
        raise LedgerDamaged(
            f"{len(damaged)} of {count_of(len(rows), 'run')} cannot be read: {names}", hint=damaged[0]["hint"]
        )
    copied = next((row for row in rows if row["state"] == "copied"), None)
    if copied is not None:
        raise RunCopied(copied["detail"], hint=copied["hint"])


def _rows(runs: list[OpenRun]) -> list[dict[str, Any]]:
    from concurrent.futures import ThreadPoolExecutor

    from spotrun.runs.open_run import OPENERS

    with ThreadPoolExecutor(OPENERS) as pool:
        return list(pool.map(_row, runs))


def _row(run: OpenRun) -> dict[str, Any]:
    """Return the row of a run. If its figures cannot be computed, the row shows the error instead."""
    from spotrun.report.machine_readable import json_object

    base = {"run": run.id, "name": run.created.name, "started_at": run.created.clock_epoch, "uri": run.uri}
    try:
        facts = _facts(run)
    except ArithmeticError as error:
        facts = _unreadable_facts(Unreckonable(error))
    return json_object(str, **base, **facts)


def _facts(run: OpenRun) -> dict[str, Any]:
    """
    Return the facts that the list shows about a run. If the run has ended and a runner has written its final status,
    take them from there, because reading a ledger is slow.
    """
    from spotrun.folder.final_status import final_status
    from spotrun.store.retrying import persist

    status = persist(run.final_status)
    if status is None:
        try:
            state = run.ledger.refresh()
            status = final_status(state)
            if status is None:
                return _facts_so_far(run, state)
        except StoreUnavailable:
            raise
        except StoreError as error:
            return _unreadable_facts(error)
    return _final_facts(run, status)


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


def _unreadable_row(run: Unreadable) -> dict[str, Any]:
    facts = {"run": run.name, "name": run.name.rpartition("-")[0], "started_at": "", "uri": run.uri}
    return facts | _unreadable_facts(run.error)


def _unreadable_facts(error: SpotrunError) -> dict[str, Any]:
    state = STATES.get(type(error), "unreadable")
    return {"state": state, "detail": error.message, "hint": error.hint}


def _attended(run: OpenRun) -> bool | None:
    """Return True if a runner takes care of the run, False if none does, and None if the run has ended."""
    from spotrun.runs.open_run import attended

    return None if run.ledger.state.terminal is not None else attended(run)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from spotrun.report.folding import say
    from spotrun.report.overview import notes, table
    from spotrun.report.tables import print_table

    print_table(table(rows))
    for note in notes(rows):
        say(note, indent=2)
    if len(rows) == 1 and rows[0]["state"] in ENDED:
        _print_results(rows[0])


def _print_results(row: dict[str, Any]) -> None:
    from spotrun.report.results import how_to_get
    from spotrun.runs.open_run import reference
    from spotrun.runs.program import program

    found_by = reference(row["run"], row["uri"])
    for line in how_to_get(program(), row["name"], found_by, weights=row["step"] > 0, files=row["files"]):
        print(line)
