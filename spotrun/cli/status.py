"""`spotrun status`"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotrun.cli.options import JsonOption, StoreOption, print_json
from spotrun.errors import LedgerDamaged, SpecInvalid

if TYPE_CHECKING:
    from spotrun.account.spending import BudgetForecast
    from spotrun.cli.runs import OpenRun, Unreadable
    from spotrun.run.state import RunState


LOOK_AGAIN_S = 2.0
"""System time between two refreshes of `-w`."""


def status(
    store: StoreOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep the list up to date until all runs have ended.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List all runs, newest first."""
    from spotrun.address import DEFAULT_STORE
    from spotrun.cli.runs import look_in

    if watch and as_json:
        raise SpecInvalid("--watch and --json exclude each other", hint="leave out one of them")
    runs, unreadable = look_in(store or DEFAULT_STORE)
    newest_first = sorted(runs, key=lambda run: run.created.clock_epoch, reverse=True)
    damaged = [_unreadable_row(each) for each in unreadable]
    rows = _watch(newest_first, damaged) if watch else [_row(run) for run in newest_first] + damaged
    if as_json:
        print_json(rows)
    elif not rows:
        print(f"no runs in {store or DEFAULT_STORE}; start one with `spotrun launch examples/resnet50.yaml`")
    elif not watch:
        _print_table(rows)
    _refuse_damage(rows)


def _watch(runs: list[OpenRun], damaged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Show the runs until all have ended, and return the last rows. Ctrl-C ends only the watching."""
    from spotrun.report.overview import watching

    with watching() as view:
        while True:
            rows = [_row(run) for run in runs] + damaged
            view.show(rows)
            if not any(row.get("next") for row in rows):
                return rows
            time.sleep(LOOK_AGAIN_S)


def _refuse_damage(rows: list[dict[str, Any]]) -> None:
    """Raise for damaged runs, so that the exit code shows them too."""
    damaged = [row for row in rows if row["state"] == "damaged"]
    if damaged:
        names = ", ".join(row["run"] for row in damaged)
        raise LedgerDamaged(f"{len(damaged)} of {len(rows)} runs cannot be read: {names}", hint=damaged[0]["hint"])


def _row(run: OpenRun) -> dict[str, Any]:
    from spotrun.account.outcome import status_word
    from spotrun.account.summary import summarise
    from spotrun.report.budget import budget_forecast
    from spotrun.report.sparkline import hourly_prices
    from spotrun.report.tables import plain

    base = {"run": run.id, "name": run.created.name, "started_at": run.created.clock_epoch.isoformat(), "uri": run.uri}
    try:
        state = run.ledger.refresh()
    except LedgerDamaged as error:
        return {**base, "state": "damaged", "detail": error.message, "hint": error.hint}
    now = run.clock.now()
    summary = summarise(state, now)
    total, budget = summary.total, budget_forecast(state, summary, now, _epochs_total(run))
    return {
        **base,
        "state": status_word(state),
        "attended": _attended(run),
        "step": max((commit.event.step for commit in state.commits if commit.usable), default=0),
        "epochs_completed": len(state.epochs),
        "interruptions": total.interruptions,
        "cost_usd": str(total.cost_usd),
        "prices_usd_per_hour": [None if price is None else str(price) for price in hourly_prices(state, now)],
        "simulated": run.created.simulated,
        "voids": len(state.voids),
        "deadline_at": None if run.created.deadline_at is None else run.created.deadline_at.isoformat(),
        "deadline_lost": state.deadline_lost is not None,
        **_budget_facts(budget),
        "next": _next(run, state),
        "detail": plain(_detail(state, budget)),
    }


def _epochs_total(run: OpenRun) -> int | None:
    from spotrun.folder.status_objects import AgentStatus, agent_key, read_status

    state = run.ledger.state
    if run.created.budget_usd is None or state.current is None:
        return None
    status = read_status(run.store, agent_key(state.current.launch), AgentStatus)
    return None if status is None else status.epochs or None


def _budget_facts(budget: BudgetForecast | None) -> dict[str, Any]:
    """The forecast of the budget under the keys of `--json`. Epochs count from 1."""
    if budget is None:
        return {"budget_usd": None, "budget_passed_at": None, "budget_passed_in_epoch": None}
    return {
        "budget_usd": str(budget.budget_usd),
        "budget_passed_at": None if budget.passes_at is None else budget.passes_at.isoformat(),
        "budget_passed_in_epoch": None if budget.epoch is None else budget.epoch + 1,
    }


def _next(run: OpenRun, state: RunState) -> str | None:
    """The next decision; None if the run has ended, or a later spotrun wrote its specification."""
    from spotrun.report.next_decision import next_decision
    from spotrun.report.tables import plain

    if state.terminal is not None:
        return None
    try:
        return plain(next_decision(state, run.spec, run.clock.now()))
    except SpecInvalid:
        return None


def _detail(state: RunState, budget: BudgetForecast | None) -> str:
    from spotrun.report.budget import budget_line

    if state.terminal is not None:
        return state.terminal.detail
    lost = ["the deadline cannot be met"] if state.deadline_lost is not None else []
    spent = [budget_line(budget)] if budget is not None else []
    alone = [f"only its own timer would end {found.instance_id}: {found.unguarded}" for found in state.unguarded]
    return "; ".join(lost + spent + alone)


def _unreadable_row(run: Unreadable) -> dict[str, Any]:
    state = "damaged" if isinstance(run.error, LedgerDamaged) else "unreadable"
    facts = {"run": run.name, "name": run.name.rpartition("-")[0], "started_at": "", "uri": run.uri}
    return {**facts, "state": state, "detail": run.error.message, "hint": run.error.hint}


def _attended(run: OpenRun) -> bool | None:
    """Whether a runner attends to the run; None if it has ended."""
    from spotrun.cli.runs import attended

    return None if run.ledger.state.terminal is not None else attended(run)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from spotrun.report.overview import notes, table

    Console().print(table(rows))
    for note in notes(rows):
        print(note)
