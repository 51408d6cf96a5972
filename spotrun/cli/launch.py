"""`spotrun launch`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.options import DetachOption, LaunchStoreOption, ScriptArguments, SpecArgument, YesOption
from spotrun.errors import SpecInvalid

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be rented, and rent nothing.")]
NameOption = Annotated[str | None, typer.Option("--name", "-n", metavar="NAME", help="Give the run this name.")]
CloudOption = Annotated[str | None, typer.Option("--cloud", metavar="CLOUD", help="Train on this cloud.")]
RegionOption = Annotated[str | None, typer.Option("--region", metavar="REGION", help="Rent only in this region.")]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Set an environment variable of the training. Repeatable."),
]
SpotOption = Annotated[bool, typer.Option("--spot", help="Use spot capacity only.")]
OnDemandOption = Annotated[bool, typer.Option("--on-demand", help="Use on-demand capacity only.")]
AutoOption = Annotated[bool, typer.Option("--auto", help="Use spot where possible and on-demand where needed.")]
MaxPriceOption = Annotated[
    str | None, typer.Option("--max-price", metavar="USD", help="Pay at most this much an hour for an instance.")
]
MaxDurationOption = Annotated[
    str | None, typer.Option("--max-duration", metavar="DURATION", help="Stop the run after this long, like 8h.")
]
DeadlineOption = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME", help="Finish by then at least cost: in 8h, or at 07:00.")
]
NightlyOption = Annotated[
    bool,
    typer.Option(
        "--nightly",
        help="For cron: carry on last night's run if it is unfinished, else begin a new one. Asks nothing.",
    ),
]
StartOption = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Begin from this Lightning checkpoint.")
]


def launch(
    spec_path: SpecArgument,
    arguments: ScriptArguments = None,
    yes: YesOption = False,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    name: NameOption = None,
    cloud: CloudOption = None,
    region: RegionOption = None,
    env: EnvOption = None,
    spot: SpotOption = False,
    on_demand: OnDemandOption = False,
    auto: AutoOption = False,
    max_price: MaxPriceOption = None,
    max_duration: MaxDurationOption = None,
    deadline: DeadlineOption = None,
    nightly: NightlyOption = False,
    start: StartOption = None,
    store: LaunchStoreOption = None,
) -> None:
    """Train a job, or a script by itself, to its end, on spot capacity where possible."""
    from shlex import quote

    from spotrun import address
    from spotrun.clouds.registry import cloud_of
    from spotrun.creation import create_run
    from spotrun.notify.sinks import require_sinks
    from spotrun.runs import attend
    from spotrun.runs.asking import confirm, say
    from spotrun.runs.background import leave_behind
    from spotrun.runs.before_launch import (
        check_script,
        going_on,
        left_behind,
        require_framework,
        unseen,
        with_baseline_price,
        with_image,
    )
    from spotrun.runs.known import remember
    from spotrun.runs.nightly import attend_tonight
    from spotrun.runs.open_run import OpenRun, default_store, open_run, who
    from spotrun.runs.signals import Signalled
    from spotrun.secrets.values import require_variables
    from spotrun.spec.file import load_spec, placed

    if spot + on_demand + auto > 1:
        raise SpecInvalid("--spot, --on-demand and --auto exclude one another", hint="give one of them")
    if nightly and detach:
        raise SpecInvalid("--nightly looks after its run itself", hint="leave --detach out; cron needs none")
    policy = "spot" if spot else "on-demand" if on_demand else "auto" if auto else None
    overrides: dict[str, object] = {
        "name": name,
        "resources.cloud": cloud,
        "resources.region": region,
        "resources.spot_policy": policy,
        "resources.max_price": max_price,
        "max_duration": max_duration,
        "policy.deadline": deadline,
        "checkpoint.uri": None if store is None else address.absolute(store),
        **_variables(env or []),
    }
    with placed(spec_path, overrides):
        spec = with_baseline_price(load_spec(spec_path, overrides, default_store(), arguments or ()))
    others = [] if nightly else going_on(spec)

    if spec_path.suffix == ".py" and (beside := spec_path.with_suffix(".yaml")).is_file():
        print(f"{beside} is not used here; `spotrun launch {quote(str(beside))}` uses it.")

    def create() -> OpenRun:
        try:
            run = open_run(create_run(spec, f"cli:{who()}", start), None, "runner")
            remember(run)
            return run
        except (KeyboardInterrupt, Signalled):
            say("nothing was rented; `spotrun status` shows whether there is a run already")
            raise

    def show() -> None:
        nonlocal spec
        with placed(spec_path, overrides):
            spec, of_image = with_image(spec, os.environ)
            unread = check_script(spec, here=cloud_of(spec).here)
            staying = left_behind(spec, all_of_them=dry_run)
            attend.show_plan(spec)
            notes = [*of_image, *unseen(spec)]
        if cloud_of(spec).here:
            require_framework(spec)
        if dry_run and not cloud_of(spec).here:
            doctor = f"spotrun doctor {spec.resources.cloud} JOB.yaml"
            notes.append(f"rights, quotas and secrets are not looked at here: `{doctor}` does")
        for line in [*others, *(one for one in (unread, staying) if one is not None), *notes]:
            say(f"note: {line}")
        require_sinks(spec)
        require_variables(spec.secret_references, os.environ)
        if start is not None:
            attend.show_start(start)

    if nightly and not dry_run:
        attend_tonight(spec, show, create)
        return
    show()
    if dry_run:
        return
    question = "Launch another?" if others else "Launch?"
    confirm(yes, question, default=not attend.billed(spec) and not others, declined="nothing was launched")
    run = create()
    if detach:
        leave_behind(run)
        return
    attend.attend(run)


def _variables(assignments: list[str]) -> dict[str, object]:
    for assignment in assignments:
        if "=" not in assignment:
            raise SpecInvalid(f"--env {assignment!r} has no value", hint="--env NAME=VALUE")
    return {f"envs.{name}": value for name, _, value in (text.partition("=") for text in assignments)}
