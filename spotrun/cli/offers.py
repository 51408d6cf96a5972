"""`spotrun offers`"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from spotrun.cli.options import JsonOption, print_json
from spotrun.errors import NotInstalled, SpecInvalid
from spotrun.runs.flags import read_flag

CloudOption = Annotated[str, typer.Option("--cloud", metavar="[aws|gcp|local]", help="Show what this cloud offers.")]
AcceleratorsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--accelerators", metavar="NAME:COUNT", help="Show only types with exactly these accelerators. Can be repeated."
    ),
]
InstanceTypeOption = Annotated[
    list[str] | None, typer.Option("--instance-type", metavar="TYPE", help="Show only this type. Can be repeated.")
]
RegionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--region",
        metavar="REGION",
        help="Show this region. Can be repeated.",
        show_default="the region of your settings",
    ),
]
AdvisorOption = Annotated[
    str | None,
    typer.Option(
        "--advisor",
        metavar="FILE|URL",
        help="AWS only: file or URL of Amazon's spot-advisor-data.json, which lists how often spot instances are "
        "interrupted. A URL is read once a day.",
    ),
]
SortOption = Annotated[
    Literal["usd", "compute"],
    typer.Option(
        "--sort", metavar="[usd|compute]", help="Sort by price per hour, or by price for the same amount of compute."
    ),
]


def offers(
    cloud: CloudOption = "aws",
    accelerators: AcceleratorsOption = None,
    instance_type: InstanceTypeOption = None,
    region: RegionOption = None,
    advisor: AdvisorOption = None,
    sort: SortOption = "usd",
    as_json: JsonOption = False,
) -> None:
    """Show what can be rented: current and recent prices, how much spot saves, and what your quotas allow."""
    from spotrun.clouds.cloud import RentalFlags
    from spotrun.clouds.registry import cloud_named
    from spotrun.market.wishes import unmet, wishes_by_flags
    from spotrun.report import quotes as shown
    from spotrun.spec.values import read_accelerators

    advice, named = "write it like A10G:1", accelerators or ()
    wanted = tuple(str(read_flag("--accelerators", read_accelerators, each, advice)) for each in named)
    wish = RentalFlags(tuple(region or ()), wanted, tuple(instance_type or ()), rates=advisor)
    try:
        found = cloud_named(cloud).offers(wish)
    except NotInstalled as lacking:
        lacking.hint = f"{lacking.hint}, or see what this machine simulates: spotrun offers --cloud local"
        raise
    there = {quote.offering.accelerators.casefold() for quote in found.quotes}
    absent = [kind for kind in wanted if kind.casefold() not in there]
    if absent or not found.quotes:
        wishes = wishes_by_flags(wish.regions, wish.instance_types, absent[:1])
        everything = (
            cloud_named(cloud).offers(RentalFlags(wish.regions)).quotes
            or cloud_named(cloud).offers(RentalFlags()).quotes
        )
        missing = unmet([quote.offering for quote in everything], wishes)
        reason, hint = (missing.message, missing.suggestion) if missing else ("it offers nothing in this region", None)
        for kind in (*wish.instance_types, *absent[:1]):
            if (never := cloud_named(cloud).never_rented(kind)) is not None:
                reason, hint = never.message, hint if kind in absent else never.suggestion
        raise SpecInvalid(f"{cloud} offers no instance that fits: {reason}", hint=hint or "try another --region")
    if as_json:
        print_json(shown.as_json(found, sort))
    else:
        shown.show(found, sort)
