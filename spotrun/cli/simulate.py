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


TracesOption = Annotated[Path, typer.Option("--traces", metavar="PATH", help="Folder or file with recorded markets.")]
StrategyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="Simulate only this strategy. `optimum` is the best one in hindsight. Repeat to simulate several.",
    ),
]
WorkOption = Annotated[
    list[str], typer.Option("--work", metavar="DURATION", help="Training time of the job. Repeat to simulate several.")
]
DeadlineOption = Annotated[
    list[str],
    typer.Option(
        "--deadline",
        metavar="DURATION",
        help="Time from the start of the job to its deadline. Repeat to simulate several.",
    ),
]
ChangeoverOption = Annotated[
    list[str],
    typer.Option(
        "--changeover",
        metavar="DURATION",
        help="Time from requesting an instance to training on it. Repeat to simulate several.",
    ),
]
OnDemandOption = Annotated[
    float, typer.Option("--on-demand", metavar="USD", min=0.01, help="On-demand price per hour.")
]
PriceRatioOption = Annotated[
    float,
    typer.Option(
        "--price-ratio",
        metavar="RATIO",
        min=1.0,
        help="On-demand price divided by spot price. Used if the recorded market has no prices.",
    ),
]
NodesOption = Annotated[
    int,
    typer.Option(
        "--nodes",
        metavar="N",
        min=1,
        help="Number of instances that a job needs. If it is above 1, the recorded market must say how many instances "
        "were available.",
    ),
]
StartsOption = Annotated[
    int,
    typer.Option(
        "--starts",
        metavar="N",
        min=1,
        max=1000,
        help="Number of jobs to start in each window of a recorded market.",
    ),
]
EveryOption = Annotated[int, typer.Option("--every", metavar="N", min=1, help="Simulate only every Nth window.")]
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
    """Compare strategies on recorded markets: their cost, and how often they miss the deadline."""
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
            "every --deadline is too short for the --work and one --changeover", hint="give a longer --deadline"
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
        raise SpecInvalid(f"{flag}: {number} is not a finite number", hint=f"write it like {flag} 3.06")


def seconds_of(flag: str, durations: list[str]) -> tuple[float, ...]:
    from spotrun.spec.values import read_positive_duration

    return tuple(read_flag(flag, read_positive_duration, text).total_seconds() for text in durations)
