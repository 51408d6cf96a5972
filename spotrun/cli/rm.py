"""`spotrun rm`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import DryRunOption, StoreOption, YesOption
from spotrun.runs.completion import run_names


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Ids or names of runs that have ended.", autocompletion=run_names),
    ],
    store: StoreOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """
    Delete the folders of ended runs: ledger, checkpoints, files, logs and bill.

    Also deletes the disks that the runs' instances left on this machine, and lists the resources that remain in the
    runs' clouds. A run that has not ended, or may still have an instance, is not deleted.
    """
    from spotrun.runs.open_run import open_run
    from spotrun.runs.removing import name_others, removable, remove_all

    named = {name: open_run(name, store) for name in runs}
    name_others(named, store)
    opened = {run.id: run for run in named.values()}
    remove_all([removable(run) for run in opened.values()], yes=yes, dry_run=dry_run)
