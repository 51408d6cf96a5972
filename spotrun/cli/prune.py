"""`spotrun prune`"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from spotrun.cli.options import DryRunOption, StoreOption, YesOption
from spotrun.errors import RunNotFound, SpotrunError
from spotrun.runs.completion import run_names
from spotrun.runs.flags import read_flag


def prune(
    older: Annotated[
        str,
        typer.Option(
            "--older", metavar="DURATION", help="Delete only runs that ended at least this long ago, like 30d."
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Delete only runs of this name.", autocompletion=run_names)
    ] = None,
    store: StoreOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """
    Delete the folders of old runs, as `spotrun rm` does for single runs.

    To keep a run and delete only some of its checkpoints, use `spotrun checkpoints prune RUN`.
    """
    from spotrun.address import DEFAULT_STORE
    from spotrun.report.folding import say
    from spotrun.runs.open_run import look_in
    from spotrun.runs.removing import removable, remove_all
    from spotrun.spec.values import read_age

    before = datetime.now(UTC) - read_flag("--older", read_age, older)
    runs, unreadable = look_in(store or DEFAULT_STORE)
    named = [run for run in runs if name in (None, run.created.name, run.id)]
    if name is not None and not named:
        raise RunNotFound(f"{store or DEFAULT_STORE} has no run called {name}", hint="`spotrun status` lists the runs")
    kept = [f"{each.name}: {each.error.message}" for each in unreadable if name is None]
    found = []
    for run in sorted(named, key=lambda run: run.created.clock_epoch):
        try:
            if run.created.clock_epoch < before and (each := removable(run)).ended_at < before:
                found.append(each)
        except SpotrunError as error:
            kept.append(f"{run.id}: {error.message}")
    for reason in kept:
        say(f"kept {reason}")
    remove_all(found, yes=yes, dry_run=dry_run)
