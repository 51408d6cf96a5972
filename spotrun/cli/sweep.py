"""`spotrun sweep`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import (
    DetachOption,
    JsonOption,
    LaunchStoreOption,
    ScriptArguments,
    SpecArgument,
    YesOption,
    print_json,
)
from spotrun.errors import needs_extra

GridOption = Annotated[
    list[str] | None,
    typer.Option("--grid", metavar="NAME=VALUE,…", help="A parameter and its values: lr=1e-3,3e-4. Repeatable."),
]
BudgetOption = Annotated[str | None, typer.Option("--budget", metavar="USD", help="What all trials together may cost.")]
DeadlineOption = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME", help="When all have to be done: in 24h, or at 07:00.")
]
SampleOption = Annotated[
    int | None, typer.Option("--sample", metavar="N", min=1, help="Try only N of the combinations, at random.")
]
ReductionFactorOption = Annotated[
    float,
    typer.Option("--reduction-factor", metavar="N", help="Keep one trial in N at each comparison; 0: all."),
]
MaxParallelOption = Annotated[
    int, typer.Option("--max-parallel", metavar="N", min=1, max=64, help="How many trials run at once at most.")
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Compare by this metric that the script logs. Default: keep_best's, else a loss.",
    ),
]
ModeOption = Annotated[
    str | None, typer.Option("--mode", metavar="[min|max]", help="Whether a small or a large metric is good.")
]
GraceEpochsOption = Annotated[
    int | None,
    typer.Option(
        "--grace-epochs",
        metavar="N",
        min=1,
        help="Compare first after this many epochs. Default: as late as the budget allows.",
    ),
]
ResumeStoppedOption = Annotated[
    bool,
    typer.Option(
        "--resume-stopped", help="In the end, carry on the best of the stopped trials while the budget lasts."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Which trials come first.")]
NameOption = Annotated[
    str | None, typer.Option("--name", "-n", metavar="NAME", help="Name the sweep. Default: the job's name and -sweep.")
]
ForegroundOption = Annotated[bool, typer.Option("--foreground", hidden=True)]


def sweep(
    spec_path: SpecArgument,
    arguments: ScriptArguments = None,
    grid: GridOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    sample: SampleOption = None,
    reduction_factor: ReductionFactorOption = 2,
    max_parallel: MaxParallelOption = 4,
    metric: MetricOption = None,
    mode: ModeOption = None,
    grace_epochs: GraceEpochsOption = None,
    resume_stopped: ResumeStoppedOption = False,
    seed: SeedOption = 0,
    name: NameOption = None,
    yes: YesOption = False,
    detach: DetachOption = False,
    foreground: ForegroundOption = False,
    store: LaunchStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Train a job with several parameters, under one budget and one deadline; the worst trials stop early.

    Each trial is an ordinary run, NAME-1, NAME-2 and so on. Repeat the same command to carry on a sweep that was
    stopped or lost its process. For a sweep that is over, it shows the report. A parameter becomes an argument of the
    script, or sets the variable of that name if the job's envs have one.
    """
    import contextlib
    import sys

    with needs_extra("sweep", "a sweep"):
        from spotrun.sweep import report
        from spotrun.sweep import starting as sweep_start

    wish = sweep_start.SweepFlags(
        grid=tuple(grid or ()),
        budget=budget,
        deadline=deadline,
        sample=sample,
        reduction_factor=reduction_factor,
        max_parallel=max_parallel,
        metric=metric,
        mode=mode,
        grace_epochs=grace_epochs,
        resume_stopped=resume_stopped,
        seed=seed,
        name=name,
        store=store,
    )
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        outcome = sweep_start.attended(spec_path, arguments or (), wish, yes=yes, detach=detach, background=foreground)
    if outcome.shown is not None and as_json:
        print_json(report.as_json(outcome.shown))
    elif outcome.shown is not None:
        report.show(outcome.shown)
    if outcome.error is not None:
        raise outcome.error
