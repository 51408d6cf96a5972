"""`spotrun plan`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.options import (
    JsonOption,
    PublishedAsOption,
    ScriptArguments,
    SpecArgument,
    StoreOption,
    print_json,
    progress_bar,
    write_text,
)
from spotrun.errors import needs_extra

DeadlineOption = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME", help="Use this deadline, like 8h or 07:00.")
]
BudgetOption = Annotated[str | None, typer.Option("--budget", metavar="USD", help="Use this budget.")]
WorkOption = Annotated[
    str | None,
    typer.Option("--work", metavar="DURATION", help="Duration of the training without interruptions, like 3h."),
]
TracesOption = Annotated[
    Path | None,
    typer.Option(
        "--traces", metavar="PATH", help="Simulate on this recorded market, in a format of `spotrun simulate`."
    ),
]
PriceHistoryOption = Annotated[
    bool,
    typer.Option(
        "--price-history",
        help="Simulate with real prices: the last 90 days on AWS, the last year on Google Cloud.",
    ),
]
LifetimesOption = Annotated[
    int, typer.Option("--lifetimes", metavar="N", min=1, max=100_000, help="Number of times to simulate each strategy.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed for the simulated markets.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the forecast as one HTML file.")]


def plan(
    spec_path: SpecArgument,
    arguments: ScriptArguments = None,
    deadline: DeadlineOption = None,
    budget: BudgetOption = None,
    work: WorkOption = None,
    traces: TracesOption = None,
    published_as: PublishedAsOption = "skypilot",
    price_history: PriceHistoryOption = False,
    lifetimes: LifetimesOption = 500,
    seed: SeedOption = 0,
    html: HtmlOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast what a job will cost and when it will end. Nothing is rented."""
    with needs_extra("plan", "a forecast"):
        from spotrun.forecast.planning import planned
    from spotrun.forecast import report as shown
    from spotrun.forecast.page import forecast_page
    from spotrun.runs.asking import say
    from spotrun.runs.job_checks import alone_at_home
    from spotrun.spec.file import placed

    overrides = {"policy.deadline": deadline, "policy.expected_work": work, "budget.max_usd": budget}
    with placed(spec_path, overrides), progress_bar(quiet=as_json) as progressed:
        found = planned(
            spec_path,
            overrides,
            store,
            arguments=arguments or (),
            traces=traces,
            published_as=published_as,
            price_history=price_history,
            lifetimes=lifetimes,
            seed=seed,
            progressed=progressed,
        )
    for line in found.notes:
        say(f"note: {line}")
    if (home := alone_at_home(found.spec)) is not None:
        say(home)
    if html is not None:
        write_text(html, forecast_page(found.plan, found.spec.name))
    if as_json:
        print_json(shown.as_json(found.plan))
    elif html is not None:
        print(f"wrote {html}")
    else:
        shown.show(found.plan, known=found.spec.policy.expected_work is not None)
