"""`spotrun validate`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import JsonOption, SpecArgument, print_json


def validate(
    spec_path: SpecArgument = None,  # type: ignore[assignment]
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema for editors instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check JOB.yaml, and say everything that is wrong with it."""
    from spotrun.errors import SpecInvalid
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
