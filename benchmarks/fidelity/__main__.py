"""
Measures how far the tick model is from the runner itself, in the same markets.

    python -m benchmarks.fidelity study --traces DIR [--jobs 4] [--work 8h]... [--deadline 12h]... [--json]
    python -m benchmarks.fidelity plan JOB.yaml [--lived 4] [--lifetimes 500] [--deadline 8h] [--work 3h] [--json]

`study` takes jobs of each record and case of a study, `plan` the first lifetimes of a forecast. A job takes seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.fidelity import tables
from benchmarks.fidelity.lifetimes import by_runner
from benchmarks.fidelity.twins import fidelity
from spotrun.cli.options import JsonOption, PublishedAsOption, SpecArgument, StoreOption, print_json, progress_bar
from spotrun.cli.simulate import seconds_of
from spotrun.errors import SpecInvalid, SpotrunError
from spotrun.forecast.baselines import COMPARED
from spotrun.forecast.planning import planned
from spotrun.forecast.report import figures_of
from spotrun.forecast.study import Options, records_in

app = typer.Typer(help="How far the tick model is from the runner itself, in the same markets.", add_completion=False)


@app.command()
def study(
    traces: Annotated[Path, typer.Option("--traces", metavar="DIR", help="Recorded markets: a folder, or one file.")],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Of each record and case, spread over the record.")] = 4,
    strategy: Annotated[str, typer.Option("--strategy", help="The rule that both follow.")] = "ours",
    work: Annotated[list[str], typer.Option("--work", metavar="8h")] = ["8h"],  # noqa: B006
    deadline: Annotated[list[str], typer.Option("--deadline", metavar="12h")] = ["12h"],  # noqa: B006
    changeover: Annotated[list[str], typer.Option("--changeover", metavar="6m")] = ["6m"],  # noqa: B006
    published_as: PublishedAsOption = "skypilot",
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many must run, in records that count.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Run jobs of each record and case of a study by the ticks and by the runner."""
    if strategy not in COMPARED:
        raise SpecInvalid(f"--strategy {strategy!r} is not known", hint=f"one of {', '.join(COMPARED)}")
    options = Options(
        strategies=(strategy,),
        works_s=seconds_of("--work", work),
        deadlines_s=seconds_of("--deadline", deadline),
        changeovers_s=seconds_of("--changeover", changeover),
        published_as=published_as,
        nodes=nodes,
    )
    with progress_bar(quiet=as_json) as progressed:
        found = fidelity(records_in(traces), options, jobs, progressed)
    if as_json:
        print_json(tables.as_json(found))
    else:
        tables.show(found)


@app.command()
def plan(
    spec_path: SpecArgument,
    lived: Annotated[int, typer.Option("--lived", min=1, help="How many lifetimes the runner lives.")] = 4,
    lifetimes: Annotated[int, typer.Option("--lifetimes", min=1, help="How many are forecast.")] = 500,
    deadline: Annotated[str | None, typer.Option("--deadline", help="Instead of policy.deadline.")] = None,
    budget: Annotated[str | None, typer.Option("--budget", help="Instead of budget.max_usd.")] = None,
    work: Annotated[str | None, typer.Option("--work", help="How long the training itself takes.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    traces: Annotated[Path | None, typer.Option("--traces", help="A recorded market.")] = None,
    published_as: PublishedAsOption = "skypilot",
    price_history: Annotated[bool, typer.Option("--price-history", help="Let prices move as they did lately.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast a job as `spotrun plan` does, and let the runner live the first of its lifetimes."""
    if lived > lifetimes:
        raise SpecInvalid(f"the runner cannot live {lived} of {lifetimes} lifetimes", hint="raise --lifetimes")
    overrides = {"policy.deadline": deadline, "policy.expected_work": work, "budget.max_usd": budget}
    with progress_bar(quiet=as_json) as progressed:
        forecast = planned(
            spec_path,
            overrides,
            store,
            traces=traces,
            published_as=published_as,
            price_history=price_history,
            lifetimes=lifetimes,
            seed=seed,
            progressed=progressed,
        )
        found = by_runner(
            forecast.plan,
            forecast.spec,
            forecast.offerings,
            lived,
            measured=forecast.measured,
            seed=seed,
            source=forecast.source,
            created=forecast.created,
            progressed=progressed,
        )
    if as_json:
        print_json(figures_of(found))
    else:
        print(tables.lived_in_words(found))


def main() -> None:
    try:
        app()
    except SpotrunError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
