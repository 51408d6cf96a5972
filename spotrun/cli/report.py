"""`spotrun report`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import JsonOption, RunArgument, StoreOption, print_json


def report(
    run: RunArgument,
    store: StoreOption = None,
    as_json: JsonOption = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a row per epoch.")] = False,
) -> None:
    """Show what each completed epoch cost, in dollars and in downtime."""
    from spotrun.accounting import summarise
    from spotrun.cli.wiring import open_run
    from spotrun.report import machine, terminal

    opened = open_run(run, store)
    summary = summarise(opened.ledger.refresh(), opened.clock.now())
    if as_json:
        print_json(machine.report(summary))
    elif csv:
        print(machine.report_csv(summary), end="")
    else:
        terminal.show(summary)
