"""`spotrun launch`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.options import DetachOption, LaunchStoreOption, ScriptArguments, SpecArgument, YesOption
from spotrun.errors import SpecInvalid


def launch(
    spec_path: SpecArgument,
    arguments: ScriptArguments = None,
    yes: YesOption = False,
    detach: DetachOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be rented, and rent nothing.")] = False,
    name: Annotated[str | None, typer.Option("--name", "-n", metavar="NAME", help="Give the run this name.")] = None,
    cloud: Annotated[str | None, typer.Option("--cloud", metavar="CLOUD", help="Train on this cloud.")] = None,
    region: Annotated[str | None, typer.Option("--region", metavar="REGION", help="Rent only in this region.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Set an environment variable of the training. Repeatable."),
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Use spot capacity only.")] = False,
    on_demand: Annotated[bool, typer.Option("--on-demand", help="Use on-demand capacity only.")] = False,
    auto: Annotated[bool, typer.Option("--auto", help="Use spot where possible and on-demand where needed.")] = False,
    max_price: Annotated[
        str | None, typer.Option("--max-price", metavar="USD", help="Pay at most this much an hour for an instance.")
    ] = None,
    max_duration: Annotated[
        str | None, typer.Option("--max-duration", metavar="DURATION", help="Stop the run after this long, like 8h.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="Finish by then at least cost: in 8h, or at 07:00.")
    ] = None,
    nightly: Annotated[
        bool,
        typer.Option(
            "--nightly",
            help="For cron: carry on last night's run if it is unfinished, else begin a new one. Asks nothing.",
        ),
    ] = False,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Begin from this Lightning checkpoint.")
    ] = None,
    store: LaunchStoreOption = None,
) -> None:
    """Train a job, or a script by itself, to its end, on spot capacity where possible."""
    from shlex import quote

    from spotrun import address
    from spotrun.cli import attend
    from spotrun.cli.asking import confirm, say
    from spotrun.cli.background import leave_behind
    from spotrun.cli.before_launch import (
        check_script,
        going_on,
        left_behind,
        require_framework,
        unseen,
        with_baseline_price,
        with_image,
    )
    from spotrun.cli.known import create_known
    from spotrun.cli.nightly import attend_tonight
    from spotrun.cli.runs import OpenRun, default_store, who
    from spotrun.cli.signals import Signalled
    from spotrun.clouds.registry import cloud_of
    from spotrun.creation import prepare_run, would_be_created
    from spotrun.notify.sinks import require_sinks
    from spotrun.run.events import RunCreated
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
            return create_known(prepare_run(spec, f"cli:{who()}", start))
        except (KeyboardInterrupt, Signalled):
            say("nothing was rented; `spotrun status` shows whether there is a run already")
            raise

    def as_now(last: OpenRun) -> RunCreated:
        return would_be_created(with_image(spec, os.environ)[0], last.created.uid, start)

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
        attend_tonight(spec, show, create, as_now)
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
