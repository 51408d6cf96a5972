"""`spotrun bill`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, RunArgument, StoreOption, YesOption, print_json
from spotrun.errors import BillUnexplained, SpecInvalid

if TYPE_CHECKING:
    from spotrun.bill.reconcile import Reconciliation
    from spotrun.run.events import EndCorrected
    from spotrun.run.state import RunState
    from spotrun.runs.open_run import OpenRun


CurOption = Annotated[
    list[str] | None, typer.Option("--cur", metavar="FILE", help="An AWS Cost and Usage Report, CSV or Parquet.")
]
SpotFeedOption = Annotated[
    list[str] | None, typer.Option("--spot-feed", metavar="FILE", help="An EC2 Spot Instance data feed.")
]
GcpBillingOption = Annotated[
    list[str] | None,
    typer.Option("--gcp-billing", metavar="FILE", help="A detailed Google Cloud billing export, JSON or CSV."),
]
CorrectOption = Annotated[
    bool,
    typer.Option(
        "--correct", help="If no runner saw when an instance ended, record the end time from the bill in the ledger."
    ),
]


def bill(
    run: RunArgument,
    cur: CurOption = None,
    spot_feed: SpotFeedOption = None,
    gcp_billing: GcpBillingOption = None,
    correct: CorrectOption = False,
    store: StoreOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """
    Compare a run's recorded cost with the cloud's bill.

    Exits with 12 if a difference cannot be explained. If the bill consists of several files, repeat the option that
    names it (such as --cur), or give the option a pattern in quotes.
    """
    from shlex import quote

    from spotrun.bill import aws, gcp
    from spotrun.bill import report as shown
    from spotrun.bill.reconcile import line_filter, reconcile
    from spotrun.bill.rows import files_of
    from spotrun.runs.open_run import open_run
    from spotrun.units import count_of

    readers = [
        (cur, aws.read_cost_and_usage_report),
        (spot_feed, aws.read_spot_data_feed),
        (gcp_billing, gcp.read_billing_export),
    ]
    opened = open_run(run, store)
    if not opened.cloud.sends_bills:
        raise SpecInvalid(
            f"there is no bill to compare with: {opened.cloud.name} sends none, and its prices come from the job file",
            hint=f"spotrun report {quote(run)} shows the cost at these prices",
        )
    given = [(patterns, read) for patterns, read in readers if patterns]
    if len(given) != 1:
        raise SpecInvalid(
            "no bill was given" if not given else "only one kind of bill can be compared at a time",
            hint=f"spotrun bill {quote(run)} with one of --cur FILE, --spot-feed FILE, --gcp-billing FILE",
        )
    ((patterns, read),) = given
    paths = files_of(patterns)
    state = opened.ledger.refresh()
    found = reconcile(state, read(paths, line_filter(state)), opened.clock.now())
    simulated = opened.created.simulated
    if as_json:
        print_json(shown.as_json(found, opened.id, simulated=simulated))
    else:
        shown.show(found, opened.id, simulated=simulated)
    if correct:
        _correct(opened, found, yes=yes)
    if found.unexplained:
        raise BillUnexplained(
            f"{opened.id}: {len(found.unexplained)} of {count_of(len(found.lines), 'line')} not explained",
            hint=f"spotrun bill {quote(run)} --json has the lines that were counted",
        )


def _correct(opened: OpenRun, found: Reconciliation, *, yes: bool) -> None:
    """Show the corrections and, if the user confirms, write them to the ledger. Print to stderr: stdout may be JSON."""
    from functools import partial

    from spotrun.bill.corrections import corrected, corrections
    from spotrun.bill.report import correction
    from spotrun.folder.final_status import write_final_status
    from spotrun.runs.asking import confirm, say
    from spotrun.runs.open_run import who

    state = opened.ledger.state
    wanted = corrections(state, found)
    for each in wanted:
        say(correction(each))
    if not wanted:
        say("no end time is corrected: the bill shows no other time for any end that the ledger only estimates")
        return
    confirm(yes, "Write these ends into the ledger?", default=False, declined="the ledger stays as it is")
    for each in wanted:
        event = corrected(state, each, by=who(), evidence=found.statement.title)
        opened.ledger.append(partial(_as_decided, event))
    write_final_status(opened.store, opened.ledger)


def _as_decided(event: EndCorrected, _: RunState) -> EndCorrected:
    """Return the event unchanged, whatever entries the ledger has gained. If they contradict it, it is void."""
    return event
