"""`spotrun sweep`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import (
    DetachOption,
    JsonOption,
    LaunchDryRunOption,
    LaunchStoreOption,
    ScriptArguments,
    SpecArgument,
    YesOption,
    print_json,
)
from spotrun.errors import needs_extra

if TYPE_CHECKING:
    from spotrun.sweep.report import SweepShown

GridOption = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="NAME=VALUE,…",
        help="A parameter and its values, like lr=1e-3,3e-4. Repeat the option to vary several parameters.",
    ),
]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", metavar="USD", help="Pay at most this much for all trials together.")
]
DeadlineOption = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="Deadline for all trials: a duration or a time of day, like 24h or 07:00.",
    ),
]
SampleOption = Annotated[
    int | None,
    typer.Option("--sample", metavar="N", min=1, help="Try only N combinations of the values, chosen at random."),
]
ReductionFactorOption = Annotated[
    float,
    typer.Option("--reduction-factor", metavar="N", help="Keep one trial in N at each comparison; 0 keeps all trials."),
]
MaxParallelOption = Annotated[
    int,
    typer.Option("--max-parallel", metavar="N", min=1, max=64, help="Run at most this many trials at the same time."),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Compare trials by this metric, which the script logs. Default: the metric of keep_best; without one, "
        "a loss.",
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="[min|max]", help="min if a smaller value of the metric is better, max if a larger one is."
    ),
]
GraceEpochsOption = Annotated[
    int | None,
    typer.Option(
        "--grace-epochs",
        metavar="N",
        min=1,
        help="Compare trials for the first time after this many epochs. Default: as late as the budget allows.",
    ),
]
ResumeStoppedOption = Annotated[
    bool,
    typer.Option(
        "--resume-stopped", help="At the end, use the remaining budget to continue the best of the stopped trials."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed for the random order of the trials.")]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        "-n",
        metavar="NAME",
        help="Name of the sweep. Default: resnet50-sweep for a job named resnet50.",
    ),
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
    dry_run: LaunchDryRunOption = False,
    foreground: ForegroundOption = False,
    store: LaunchStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Train a job with different parameters, under one budget and one deadline; the worst trials stop early.

    Each trial is an ordinary run, NAME-1, NAME-2 and so on. To continue a sweep that was stopped or interrupted,
    repeat the same command. If the sweep has ended, the command shows its report.

    A parameter becomes an argument of the script. If the job's envs have a variable with the parameter's name, the
    parameter sets that variable instead.
    """
    import contextlib
    import sys

    with needs_extra("sweep", "a sweep"):
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
        outcome = sweep_start.attended(
            spec_path, arguments or (), wish, yes=yes, detach=detach, background=foreground, dry_run=dry_run
        )
    if outcome.shown is not None:
        _show(outcome.shown, as_json=as_json)
    if outcome.error is not None:
        raise outcome.error


def _show(sweep: SweepShown, *, as_json: bool) -> None:
    from spotrun.sweep import report

    if as_json:
        print_json(report.as_json(sweep))
    else:
        report.show(sweep)
