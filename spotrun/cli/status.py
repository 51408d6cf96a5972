"""`spotrun status`"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotrun.cli.options import JsonOption, StoreOption, print_json
from spotrun.errors import LedgerDamaged, RunCopied, RunNotFound, SpecInvalid
from spotrun.runs.completion import run_names

if TYPE_CHECKING:
    from spotrun.runs.open_run import OpenRun
    from spotrun.runs.status_rows import StatusRows


ENDED = ("completed", "stopped", "failed")
LOOK_AGAIN_S = 2.0
"""Seconds of system time between two refreshes of `-w`."""


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
    from spotrun.runs.status_rows import StatusRows, unreadable_row
    from spotrun.runs.sweeps import sweep_meant

    if watch and as_json:
        raise SpecInvalid("--watch and --json cannot be combined", hint="leave out one of them")
    runs, unreadable = look_in(store or DEFAULT_STORE)
    sweep = None if name is None else sweep_meant(name, store)
    trials = set[str]() if sweep is None else {run.id for run in sweep.runs()}
    named = _named(runs, name, store) if sweep is None else [run for run in runs if run.id in trials]
    damaged = [unreadable_row(each) for each in unreadable if each.name.startswith(name or "")]
    if name is not None and not named and not damaged and sweep is None:
        message = f"no run's name or id begins with {name!r} in {store or DEFAULT_STORE}"
        hint = "`spotrun status` lists the runs; --store names another store"
        raise RunNotFound(message, hint=f"leave out {name}: --watch has no value" if watch and name.isdigit() else hint)
    newest_first, made = sorted(named, key=lambda run: run.created.clock_epoch, reverse=True), StatusRows()
    if still_open:
        newest_first = [run for run, row in zip(newest_first, made.of(newest_first), strict=True) if _is_open(row)]
    newest_first = newest_first[:last]
    rows = _watch(newest_first, damaged, made) if watch else made.of(newest_first) + damaged
    if as_json:
        print_json(rows)
    elif not rows and sweep is not None:
        print(f"no trial of the sweep {name} has begun")
    elif not rows and runs:
        print(f"each run in {store or DEFAULT_STORE} has ended")
        _name_other_stores(store)
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
    """
    Name the other stores with runs that this machine knows. The user may have named `store` long ago, by SPOTRUN_STORE.
    """
    from spotrun.address import DEFAULT_STORE, absolute
    from spotrun.report.tables import plain
    from spotrun.runs.known_record import known_addresses

    known = {uri.rpartition("/")[0] for uri in known_addresses()}
    for other in sorted(known - {absolute(store or DEFAULT_STORE).rstrip("/")}):
        print(f"this machine knows runs in another store: spotrun status --store {plain(other)}")


def _is_open(row: dict[str, Any]) -> bool:
    return row["state"] not in ENDED


def _watch(runs: list[OpenRun], damaged: list[dict[str, Any]], made: StatusRows) -> list[dict[str, Any]]:
    """Show the runs until all have ended, and return the last rows. Ctrl-C ends only this display."""
    from spotrun.report.watching import watching

    with watching() as view:
        while True:
            rows = made.of(runs) + damaged
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
