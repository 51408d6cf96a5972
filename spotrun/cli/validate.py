"""`spotrun validate`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.options import JsonOption, print_json
from spotrun.errors import SpecInvalid


def validate(
    spec_path: Annotated[
        Path | None, typer.Argument(metavar="[JOB.yaml|SCRIPT.py]", help="The job file, or a script by itself.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a job file, for editors.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a job and show every mistake, with its line and how to fix it."""
    from spotrun.spec.file import load_spec
    from spotrun.spec.schema import json_schema

    if schema:
        print_json(json_schema())
        return
    if spec_path is None:
        raise SpecInvalid("no file was named", hint="spotrun validate JOB.yaml")
    spec = load_spec(spec_path)
    if as_json:
        print_json(spec.to_dict())
    else:
        print(f"{spec_path} is valid: {spec.name}")
