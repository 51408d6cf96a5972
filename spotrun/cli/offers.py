"""`spotrun offers`"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from spotrun.cli.options import JsonOption, print_json, read_flag
from spotrun.errors import SpecInvalid


def offers(
    cloud: Annotated[str, typer.Option("--cloud", metavar="[aws|local]", help="Whose offers to show.")] = "aws",
    accelerators: Annotated[
        str | None,
        typer.Option("--accelerators", metavar="NAME:COUNT", help="Show only types with exactly these accelerators."),
    ] = None,
    instance_type: Annotated[
        list[str] | None, typer.Option("--instance-type", metavar="TYPE", help="Show only this type. Repeatable.")
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region", metavar="REGION", help="Show this region. Repeatable.", show_default="that of your AWS settings"
        ),
    ] = None,
    advisor: Annotated[
        str | None,
        typer.Option(
            "--advisor",
            metavar="FILE|URL",
            help="AWS: where Amazon's spot-advisor-data.json is, which says how often spot instances are taken back. "
            "A URL is read once a day.",
        ),
    ] = None,
    sort: Annotated[
        Literal["usd", "compute"],
        typer.Option(
            "--sort", metavar="[usd|compute]", help="Sort by dollars an hour, or by dollars for the same compute."
        ),
    ] = "usd",
    as_json: JsonOption = False,
) -> None:
    """Show what can be rented: prices now and over 90 days, what spot saves, and what your quotas allow."""
    from spotrun.clouds.cloud import Wish
    from spotrun.clouds.registry import cloud_named
    from spotrun.report import quotes as shown
    from spotrun.spec.values import read_accelerators

    wanted = None
    if accelerators is not None:
        wanted = str(read_flag("--accelerators", read_accelerators, accelerators, "write it like A10G:1"))
    wish = Wish(tuple(region or ()), wanted, tuple(instance_type or ()), rates=advisor)
    found = cloud_named(cloud).offers(wish)
    if not found.quotes:
        raise SpecInvalid(f"{cloud} has no such instances there", hint="ask for less, or in another --region")
    if as_json:
        print_json(shown.as_json(found, sort))
    else:
        shown.show(found, sort)
