"""`spotrun bench`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import (
    JsonOption,
    LaunchStoreOption,
    ScriptArguments,
    SpecArgument,
    YesOption,
    print_json,
    require_writable,
    write_text,
)
from spotrun.errors import SpotrunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotrun.bench.attending import BenchPlan
    from spotrun.bench.result import BenchRow

TypesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--types",
        metavar="TYPE,...",
        help="Types to measure: accelerators like T4:1, or instance types. Repeatable.",
        show_default="the types of the job",
    ),
]
BatchOption = Annotated[
    str | None, typer.Option("--batch", metavar="N,...", help="Measure with each of these batch sizes.")
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision", metavar="NAME,...", help="Measure with each of these precisions, as the script names them."
    ),
]
DevicesOption = Annotated[
    str | None, typer.Option("--devices", metavar="N,...", help="Measure with each of these numbers of devices.")
]
StepsOption = Annotated[
    int,
    typer.Option(
        "--steps",
        metavar="N",
        min=6,
        max=100_000,
        help="Steps to measure in each trial, after its warm-up steps.",
    ),
]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", metavar="USD", help="Pay at most this much for all trials together.")
]
MaxParallelOption = Annotated[
    int | None,
    typer.Option(
        "--max-parallel",
        metavar="N",
        min=1,
        max=64,
        help="Run at most this many trials at the same time.",
        show_default="one of each type; 1 where the job trains on this machine",
    ),
]
TrialTimeoutOption = Annotated[
    str,
    typer.Option(
        "--trial-timeout", metavar="DURATION", help="End a trial that takes longer than this, including its start."
    ),
]
SamplesOption = Annotated[
    float | None,
    typer.Option(
        "--samples",
        metavar="N",
        min=1,
        help="Total number of samples that the job trains on.",
        show_default="the number that the training reports",
    ),
]
AgainstOption = Annotated[
    str | None,
    typer.Option("--against", metavar="TYPE", help="Show each type's time and cost as multiples of this type's."),
]
BatchArgOption = Annotated[
    str | None,
    typer.Option(
        "--batch-arg", metavar="NAME", help="The name of the script's argument that sets the batch size, such as --bs."
    ),
]
PrecisionArgOption = Annotated[
    str | None,
    typer.Option("--precision-arg", metavar="NAME", help="The name of the script's argument that sets the precision."),
]
DevicesArgOption = Annotated[
    str | None,
    typer.Option(
        "--devices-arg", metavar="NAME", help="The name of the script's argument that sets the number of devices."
    ),
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the result as one HTML file, with charts.")
]


def bench(
    job: SpecArgument,
    arguments: ScriptArguments = None,
    types: TypesOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    devices: DevicesOption = None,
    steps: StepsOption = 60,
    budget: BudgetOption = None,
    max_parallel: MaxParallelOption = None,
    trial_timeout: TrialTimeoutOption = "20m",
    samples: SamplesOption = None,
    against: AgainstOption = None,
    batch_arg: BatchArgOption = None,
    precision_arg: PrecisionArgOption = None,
    devices_arg: DevicesArgOption = None,
    html: HtmlOption = None,
    yes: YesOption = False,
    store: LaunchStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Measure how many samples per second and per dollar a job trains on several instance types.

    Rents instances of all types at the same time, each for a few minutes, and then ends them. If the job trains on
    this machine, the trials run one after another.

    The first steps of each trial are not measured. Later runs of the same job use the measured speeds.
    """
    from spotrun.bench import report
    from spotrun.bench.attending import wanted
    from spotrun.bench.flags import BenchFlags
    from spotrun.runs.asking import confirm, say
    from spotrun.runs.prepared import billed

    if html is not None:
        require_writable(html)
    wish = BenchFlags(
        types=tuple(types or ()),
        batch=batch,
        precision=precision,
        devices=devices,
        budget=budget,
        trial_timeout=trial_timeout,
        against=against,
        batch_arg=batch_arg,
        precision_arg=precision_arg,
        devices_arg=devices_arg,
        store=store,
    )
    asked = wanted(job, arguments or (), wish)
    here = asked.job.cloud.here
    if not as_json:
        report.show_plan([(each.trial, each.prices) for each in asked.trials])
    for line in asked.notes if not here or (max_parallel or 1) == 1 else (*asked.notes, _slower(max_parallel)):
        say(f"note: {line}")
    confirm(yes, f"Measure {len(asked.trials)}?", default=not billed(asked.job), declined="nothing was rented")
    _measure_and_show(asked, steps, max_parallel or (1 if here else None), samples, html, as_json=as_json)


def _measure_and_show(
    asked: BenchPlan, steps: int, max_parallel: int | None, samples: float | None, html: Path | None, *, as_json: bool
) -> None:
    """
    Measure the trials, then show the results. If an error ends the measurement early, show the results so far.

    Raises:
        SpotrunError: nothing was measured.
    """
    import contextlib
    import sys

    rows: list[BenchRow] = []
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            _measure(asked, steps, max_parallel, rows)
    finally:  # show the measurements that were paid for, however the block ends
        if rows:
            _show(asked, rows, samples, html, as_json=as_json)
    if not any(row.measured for row in rows):
        raise SpotrunError(
            "nothing was measured", hint="see the reasons above; `spotrun logs` has what the training printed"
        )


def _measure(asked: BenchPlan, steps: int, max_parallel: int | None, rows: list[BenchRow]) -> None:
    """Run the trials. Show each result as soon as it is known, and insert it into `rows`, which stay in trial order."""
    from spotrun.bench import report
    from spotrun.bench.attending import measuring

    order = [each.trial for each in asked.trials]
    with report.view() as view, measuring(asked.trials, steps, asked.budget_usd, max_parallel, view.show) as measured:
        for row in measured:
            rows.append(row)
            rows.sort(key=lambda each: order.index(each.trial))
            report.say_row(row)


def _slower(max_parallel: int | None) -> str:
    return f"{max_parallel} trainings at once share this machine, and slow each other down"


def _show(
    asked: BenchPlan, rows: Sequence[BenchRow], samples: float | None, html: Path | None, *, as_json: bool
) -> None:
    from spotrun.bench import report
    from spotrun.bench.page import bench_page

    if as_json:
        print_json(report.as_json(rows, samples, asked.base))
    else:
        report.show(rows, samples, asked.base)
    if html is not None:
        write_text(html, bench_page(rows, asked.job.name, samples, asked.base))
