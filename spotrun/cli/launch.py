"""`spotrun launch`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import (
    DetachOption,
    LaunchDryRunOption,
    LaunchStoreOption,
    ScriptArguments,
    SpecArgument,
    YesOption,
)
from spotrun.errors import SpecInvalid

if TYPE_CHECKING:
    from spotrun.runs.prepared import Prepared

NameOption = Annotated[str | None, typer.Option("--name", "-n", metavar="NAME", help="Give the run this name.")]
CloudOption = Annotated[str | None, typer.Option("--cloud", metavar="CLOUD", help="Train on this cloud.")]
RegionOption = Annotated[str | None, typer.Option("--region", metavar="REGION", help="Rent only in this region.")]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Set an environment variable of the training. Can be repeated."),
]
SpotOption = Annotated[bool, typer.Option("--spot", help="Use spot capacity only.")]
OnDemandOption = Annotated[bool, typer.Option("--on-demand", help="Use on-demand capacity only.")]
AutoOption = Annotated[
    bool, typer.Option("--auto", help="Use spot instances where possible, and on-demand instances where needed.")
]
MaxPriceOption = Annotated[
    str | None, typer.Option("--max-price", metavar="USD", help="Pay at most this much per hour for an instance.")
]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", metavar="USD", help="Stop before the run costs more than this.")
]
MaxDurationOption = Annotated[
    str | None, typer.Option("--max-duration", metavar="DURATION", help="Stop the run after this time, like 8h.")
]
DeadlineOption = Annotated[
    str | None,
    typer.Option("--deadline", metavar="TIME", help="Finish by this time, like 8h or 07:00, as cheaply as possible."),
]
NightlyOption = Annotated[
    bool,
    typer.Option(
        "--nightly",
        help="For cron: continue last night's run if it is unfinished, else start a new run. Never prompts.",
    ),
]
StartOption = Annotated[
    Path | None, typer.Option("--init-from", metavar="FILE", help="Begin the training from this Lightning checkpoint.")
]


def launch(
    spec_path: SpecArgument,
    arguments: ScriptArguments = None,
    yes: YesOption = False,
    detach: DetachOption = False,
    dry_run: LaunchDryRunOption = False,
    name: NameOption = None,
    cloud: CloudOption = None,
    region: RegionOption = None,
    env: EnvOption = None,
    spot: SpotOption = False,
    on_demand: OnDemandOption = False,
    auto: AutoOption = False,
    max_price: MaxPriceOption = None,
    budget: BudgetOption = None,
    max_duration: MaxDurationOption = None,
    deadline: DeadlineOption = None,
    nightly: NightlyOption = False,
    start: StartOption = None,
    store: LaunchStoreOption = None,
) -> None:
    """Train a job to its end, on spot capacity where possible. A script needs no job file."""
    from spotrun import address
    from spotrun.runs.nightly import attend_tonight
    from spotrun.runs.offline_checks import check_launch_offline
    from spotrun.runs.open_run import default_store
    from spotrun.runs.prepared import prepare
    from spotrun.spec.file import load_spec, placed

    _refuse_both(nightly, detach)
    overrides: dict[str, object] = {
        "name": name,
        "resources.cloud": cloud,
        "resources.region": region,
        "resources.spot_policy": _policy(spot, on_demand, auto),
        "resources.max_price": max_price,
        "budget.max_usd": budget,
        "max_duration": max_duration,
        "policy.deadline": deadline,
        "checkpoint.uri": None if store is None else address.absolute(store),
        **_variables(env or []),
    }
    check = None if nightly and not dry_run else check_launch_offline  # an unfinished run needs no checks
    spec = load_spec(spec_path, overrides, default_store(), arguments or (), check)
    _say_what_is_not_used(spec_path)

    def prepared_now() -> Prepared:
        with placed(spec_path, overrides):
            return prepare(spec, spec_path, start, dry_run=dry_run)

    if nightly and not dry_run:
        attend_tonight(spec, start, prepared_now)
        return
    prepared = prepared_now()
    others = [] if nightly else prepared.going_on()
    prepared.show(others)
    if not dry_run:
        _begin(prepared, another=bool(others), yes=yes, detach=detach)


def _begin(prepared: Prepared, *, another: bool, yes: bool, detach: bool) -> None:
    from spotrun.runs.asking import confirm
    from spotrun.runs.attend import attend
    from spotrun.runs.background import leave_behind
    from spotrun.runs.prepared import billed

    question = "Launch another?" if another else "Launch?"
    confirm(yes, question, default=not billed(prepared.spec) and not another, declined="nothing was launched")
    run = prepared.create()
    if detach:
        leave_behind(run)
    else:
        attend(run)


def _refuse_both(nightly: bool, detach: bool) -> None:
    if nightly and detach:
        raise SpecInvalid(
            "--nightly cannot be combined with --detach, because --nightly runs the runner in this process",
            hint="leave out --detach; cron does not need it",
        )


def _policy(spot: bool, on_demand: bool, auto: bool) -> str | None:
    if spot + on_demand + auto > 1:
        raise SpecInvalid("--spot, --on-demand and --auto exclude one another", hint="use only one of them")
    return "spot" if spot else "on-demand" if on_demand else "auto" if auto else None


def _say_what_is_not_used(path: Path) -> None:
    from shlex import quote

    if path.suffix == ".py" and (job := path.with_suffix(".yaml")).is_file():
        print(f"{job} is not used; `spotrun launch {quote(str(job))}` would use it.")


def _variables(assignments: list[str]) -> dict[str, object]:
    for assignment in assignments:
        if "=" not in assignment.lstrip("="):
            lacks = "name" if assignment.startswith("=") else "value"
            raise SpecInvalid(f"--env {assignment!r} has no {lacks}", hint="write it as --env NAME=VALUE")
    return {f"envs.{name}": value for name, _, value in (text.partition("=") for text in assignments)}
