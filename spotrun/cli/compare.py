"""`spotrun compare`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import JsonOption, StoreOption, print_json


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Two runs or more; ratios are to the first.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a row per run.")] = False,
) -> None:
    """Show the bills of some runs side by side."""
    from spotrun.accounting import summarise
    from spotrun.cli.wiring import open_run
    from spotrun.report import compare as comparison

    opened = [open_run(run, store) for run in runs]
    summaries = [summarise(run.ledger.refresh(), run.clock.now()) for run in opened]
    if as_json:
        print_json(comparison.machine(summaries))
    elif csv:
        print(comparison.csv(summaries), end="")
    else:
        comparison.show(summaries)
