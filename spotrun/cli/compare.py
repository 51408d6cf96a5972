"""`spotrun compare`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.options import JsonOption, StoreOption, print_json, write_text
from spotrun.errors import SpecInvalid
from spotrun.runs.flags import only_one


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Two or more runs. Ratios are relative to the first.")
    ],
    last: Annotated[
        int | None,
        typer.Option(
            "--last", metavar="N", min=1, help="Compare the last N runs that have the given name, oldest first."
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one row per run.")] = False,
    md: Annotated[bool, typer.Option("--md", help="Print a Markdown table.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the comparison as one HTML file.")
    ] = None,
) -> None:
    """Show the bills of several runs side by side."""
    from shlex import quote

    from spotrun.account.summary import summarise
    from spotrun.report import compare as comparison
    from spotrun.report.folding import say
    from spotrun.report.html.comparison import comparison_page
    from spotrun.runs.open_run import open_run, runs_named

    only_one(json=as_json, csv=csv, md=md)
    if last and len(runs) != 1:
        raise SpecInvalid(f"--last takes one name, but {len(runs)} were given", hint=f"--last {last} {runs[0]}")
    if not last and len(runs) == 1:
        raise SpecInvalid(
            "a comparison needs two runs or more", hint=f"`spotrun report {quote(runs[0])}` shows one run"
        )
    opened = runs_named(runs[0], store)[-last:] if last else [open_run(run, store) for run in runs]
    summaries = [summarise(run.ledger.refresh(), run.clock.now()) for run in opened]
    if html is not None:
        write_text(html, comparison_page(summaries, with_trend=last is not None))
    if html is not None and not (as_json or csv or md):
        print(f"wrote {html}")
    elif as_json:
        print_json(comparison.as_json(summaries))
    elif csv:
        print(comparison.csv(summaries), end="")
    elif md:
        print(comparison.markdown(summaries, with_trend=last is not None), end="")
    else:
        comparison.show(summaries)
        if last:
            say(f"\n{comparison.trend(summaries)}", indent=4)
