"""`spotrun report`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, RunOrNewest, StoreOption, print_json, write_text
from spotrun.errors import SpecInvalid, needs_extra
from spotrun.runs.flags import only_one

if TYPE_CHECKING:
    from spotrun.runs.sweeps import NamedSweep


def report(
    run: RunOrNewest = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one row per epoch.")] = False,
    fail_if: Annotated[
        str | None,
        typer.Option("--fail-if", metavar="CONDITION", help="Exit with 10 if true, like 'usd_per_epoch > 0.42'."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", metavar="NAME", help="With --html: plot this metric, like val_loss, over the cost."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML file.")
    ] = None,
) -> None:
    """
    Show what each completed epoch cost, in dollars and in downtime.

    If RUN is the name of a sweep, show the cost and the result of each of its trials.
    """
    from spotrun.account.summary import summarise
    from spotrun.folder.machine_use import machine_use
    from spotrun.folder.run_calls import read_calls
    from spotrun.report import limits, machine_readable, terminal
    from spotrun.report.html.page import page
    from spotrun.report.machine_use import whole_report
    from spotrun.runs.open_run import open_run, or_newest_here
    from spotrun.runs.sweeps import sweep_meant

    only_one(json=as_json, csv=csv)
    if metric is not None and html is None:
        raise SpecInvalid(
            "--metric has an effect only on the HTML report", hint=f"use --html report.html --metric {metric}"
        )
    run = or_newest_here(run, store)
    if (sweep := sweep_meant(run, store)) is not None:
        _refuse_of_sweeps(sweep, {"--csv": csv, "--fail-if": fail_if is not None, "--html": html is not None})
        _show_sweep(sweep, as_json)
        return
    limit = None if fail_if is None else limits.parse(fail_if)
    opened = open_run(run, store)
    state, now = opened.ledger.refresh(), opened.clock.now()
    summary = summarise(state, now)
    machines = [] if csv and html is None else machine_use(opened.store, state)
    counted = None if csv and html is None else read_calls(opened.store)
    calls = None if counted is None else opened.cloud.runner_calls(counted)
    if html is not None:
        write_text(html, page(state, opened.ledger.entries, now, metric, machines, calls))
    if html is not None and not (as_json or csv):
        print(f"wrote {html}")
    elif as_json:
        print_json(whole_report(summary, machines, calls))
    elif csv:
        print(machine_readable.report_csv(summary), end="")
    else:
        terminal.show(summary, machines=machines, calls=calls)
    if limit is not None:
        limits.check(limit, summary)


def _refuse_of_sweeps(sweep: NamedSweep, given: dict[str, bool]) -> None:
    """
    Raises:
        SpecInvalid: one of the `given` flags is set. They do not work for a sweep.
    """
    for flag in (flag for flag, is_given in given.items() if is_given):
        raise SpecInvalid(
            f"{flag} works only for a run, and {sweep.record.name} is a sweep",
            hint=f"name one of its trials, such as {sweep.record.run_name(1)}",
        )


def _show_sweep(sweep: NamedSweep, as_json: bool) -> None:
    with needs_extra("sweep", "the report of a sweep"):
        from spotrun.sweep import report
        from spotrun.sweep.shown import sweep_shown

    shown = sweep_shown(sweep)
    if as_json:
        print_json(report.as_json(shown))
    else:
        report.show(shown)
