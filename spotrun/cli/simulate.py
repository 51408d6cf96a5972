"""`spotrun simulate`"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.options import JsonOption, PublishedAsOption, print_json, progress_bar
from spotrun.errors import SpecInvalid, needs_extra
from spotrun.runs.flags import known_word, only_one, read_flag

STRATEGIES_SHOWN = ["ours", "greedy", "uniform_progress", "on_demand_only", "spot_only"]


TracesOption = Annotated[
    Path, typer.Option("--traces", metavar="PATH", help="Recorded markets: a folder, or one file.")
]
StrategyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="Study only this strategy. `optimum` is the best strategy in hindsight. Repeatable.",
    ),
]
WorkOption = Annotated[list[str], typer.Option("--work", metavar="DURATION", help="How long a job trains. Repeatable.")]
DeadlineOption = Annotated[
    list[str], typer.Option("--deadline", metavar="DURATION", help="How long a job may take. Repeatable.")
]
ChangeoverOption = Annotated[
    list[str],
    typer.Option("--changeover", metavar="DURATION", help="How long a start on a new instance takes. Repeatable."),
]
OnDemandOption = Annotated[
    float, typer.Option("--on-demand", metavar="USD", min=0.01, help="What an hour costs on demand.")
]
PriceRatioOption = Annotated[
    float,
    typer.Option(
        "--price-ratio",
        metavar="RATIO",
        min=1.0,
        help="On-demand price divided by spot price, if the record has no prices.",
    ),
]
NodesOption = Annotated[
    int,
    typer.Option(
        "--nodes",
        metavar="N",
        min=1,
        help="How many instances a job needs at once. Needs a record that says how many instances were available.",
    ),
]
StartsOption = Annotated[
    int, typer.Option("--starts", metavar="N", min=1, max=1000, help="How many jobs to start in each window.")
]
EveryOption = Annotated[int, typer.Option("--every", metavar="N", min=1, help="Study only every Nth window.")]
AsCsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


def simulate(
    traces: TracesOption,
    published_as: PublishedAsOption = "skypilot",
    strategy: StrategyOption = None,
    work: WorkOption = ["8h"],  # noqa: B006
    deadline: DeadlineOption = ["12h"],  # noqa: B006
    changeover: ChangeoverOption = ["6m"],  # noqa: B006
    on_demand: OnDemandOption = 3.06,
    price_ratio: PriceRatioOption = 3.0,
    nodes: NodesOption = 1,
    starts: StartsOption = 4,
    every: EveryOption = 1,
    as_csv: AsCsvOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare strategies on recorded markets: what they cost, and how often they miss the deadline."""
    with needs_extra("plan", "a simulation"):
        from spotrun.forecast.study import Options, records_in, study
        from spotrun.forecast.traces import AVAILABLE
    from spotrun.forecast import study_report as shown

    only_one(csv=as_csv, json=as_json)
    require_finite("--on-demand", on_demand)
    require_finite("--price-ratio", price_ratio)
    works, deadlines, changeovers = (
        seconds_of("--work", work),
        seconds_of("--deadline", deadline),
        seconds_of("--changeover", changeover),
    )
    if max(deadlines) < min(works) + min(changeovers):
        raise SpecInvalid(
            "every --deadline is too short for the --work and one --changeover", hint="give a later --deadline"
        )
    options = Options(
        strategies=tuple(known_word("--strategy", each, _strategies()) for each in strategy or STRATEGIES_SHOWN),
        works_s=works,
        deadlines_s=deadlines,
        changeovers_s=changeovers,
        on_demand_usd_per_hour=on_demand,
        price_ratio=price_ratio,
        published_as=known_word("--published-as", published_as, AVAILABLE),
        nodes=nodes,
        starts=starts,
        every=every,
    )
    with progress_bar(quiet=as_json or as_csv) as progressed:
        found = study(records_in(traces), options, progressed)
    if as_json:
        print_json(shown.as_json(found))
    elif as_csv:
        print(shown.as_csv(found), end="")
    else:
        shown.show(found)


def _strategies() -> list[str]:
    from spotrun.forecast.baselines import COMPARED
    from spotrun.forecast.study import OPTIMUM

    return [*COMPARED, OPTIMUM]


def require_finite(flag: str, number: float) -> None:
    """
    Raises:
        SpecInvalid: `number` is `nan` or `inf`, which Typer accepts as numbers.
    """
    if not isfinite(number):
        raise SpecInvalid(f"{flag}: {number} is not a number", hint=f"write it like {flag} 3.06")


def seconds_of(flag: str, durations: list[str]) -> tuple[float, ...]:
    from spotrun.spec.values import read_positive_duration

    return tuple(read_flag(flag, read_positive_duration, text).total_seconds() for text in durations)
