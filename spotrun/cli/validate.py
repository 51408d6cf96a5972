"""`spotrun validate`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.options import JsonOption, known_word, print_json
from spotrun.errors import SpecInvalid


def validate(
    spec_path: Annotated[
        Path | None, typer.Argument(metavar="[JOB.yaml|SCRIPT.py]", help="The job file, or a script by itself.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a job file, for editors.")] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="sky", help="The file is SkyPilot's: say what each of its keys becomes, or what to write."
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="JOB.yaml", help="With --from: write the job in spotrun's words, beside it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Check a job and show every mistake, with its line and how to fix it.

    No cloud is asked: whether one rents out the resources shows `spotrun launch --dry-run`.
    """
    from spotrun.cli.asking import say
    from spotrun.cli.before_launch import about_home, check_script, not_offered
    from spotrun.cli.from_sky import from_sky
    from spotrun.cli.runs import default_store
    from spotrun.clouds.registry import cloud_of
    from spotrun.market.accelerators import meant_by
    from spotrun.spec.file import load_spec, placed
    from spotrun.spec.schema import json_schema
    from spotrun.spec.values import Accelerators

    if schema:
        print_json(json_schema())
        return
    if spec_path is None:
        raise SpecInvalid("no file was named", hint="spotrun validate JOB.yaml")
    if write is not None and source is None:
        raise SpecInvalid("--write goes with --from sky", hint="add it, or leave --write out")
    if source is not None:
        known_word("--from", source, ("sky",))
        spec, rents = from_sky(spec_path, default_store(), write, as_json=as_json)
    else:
        spec, rents = load_spec(spec_path, default_store=default_store()), True
    simulated = cloud_of(spec).simulated
    with placed(spec_path):
        unread = check_script(spec, here=cloud_of(spec).here)
        if simulated and (mistake := not_offered(spec)) is not None:
            if rents:
                raise mistake
            say(f"note: {spec.resources.cloud} is no place for it: {mistake.message}")
    if unread is not None:
        say(f"note: {unread}")
    if (home := about_home(spec)) is not None:
        say(f"note: {home}")
    if not simulated:
        for asked in spec.resources.kinds:
            if isinstance(asked, Accelerators) and (meant := meant_by(asked.name)) is not None:
                say(f"note: spotrun knows no accelerator {asked.name}: did you mean {meant}:{asked.count}?")
        cloud = spec.resources.cloud
        say(f"note: {cloud} was not asked whether it has these resources; `spotrun launch --dry-run` asks it")
    if as_json and source is None:
        print_json(spec.to_dict())
    elif not as_json:
        print(f"{spec_path} is valid: {spec.name}")
