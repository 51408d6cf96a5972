"""`spotrun bill`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import JsonOption, RunArgument, StoreOption, print_json
from spotrun.errors import BillUnexplained, SpecInvalid


def bill(
    run: RunArgument,
    cur: Annotated[
        list[str] | None, typer.Option("--cur", metavar="FILE", help="An AWS Cost and Usage Report, CSV or Parquet.")
    ] = None,
    spot_feed: Annotated[
        list[str] | None, typer.Option("--spot-feed", metavar="FILE", help="An EC2 Spot Instance data feed.")
    ] = None,
    gcp_billing: Annotated[
        list[str] | None,
        typer.Option("--gcp-billing", metavar="FILE", help="A detailed Google Cloud billing export, JSON or CSV."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Compare what a run cost by its ledger with what the cloud charged.

    Exits with 12 if a difference cannot be explained. If the bill has several files, repeat the option or quote a
    pattern.
    """
    from shlex import quote

    from spotrun.bill import aws, gcp
    from spotrun.bill.reconcile import line_filter, reconcile
    from spotrun.bill.rows import files_of
    from spotrun.cli.runs import open_run
    from spotrun.report import bill as shown
    from spotrun.units import count_of

    readers = [
        (cur, aws.read_cost_and_usage_report),
        (spot_feed, aws.read_spot_data_feed),
        (gcp_billing, gcp.read_billing_export),
    ]
    given = [(patterns, read) for patterns, read in readers if patterns]
    if len(given) != 1:
        raise SpecInvalid(
            f"one kind of bill is compared at a time, and {len(given)} were given",
            hint=f"spotrun bill {quote(run)} with one of --cur FILE, --spot-feed FILE, --gcp-billing FILE",
        )
    ((patterns, read),) = given
    paths = files_of(patterns)
    opened = open_run(run, store)
    state = opened.ledger.refresh()
    found = reconcile(state, read(paths, line_filter(state)), opened.clock.now())
    simulated = opened.created.simulated
    if as_json:
        print_json(shown.as_json(found, opened.id, simulated=simulated))
    else:
        shown.show(found, opened.id, simulated=simulated)
    if found.unexplained:
        raise BillUnexplained(
            f"{opened.id}: {len(found.unexplained)} of {count_of(len(found.lines), 'line')} not explained",
            hint=f"spotrun bill {quote(run)} --json has the lines that were counted",
        )
