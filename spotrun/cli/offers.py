"""`spotrun offers`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spotrun.cli.options import JsonOption, print_json

if TYPE_CHECKING:
    from spotrun.market.quotes import Quotes


def offers(
    cloud: Annotated[
        Literal["aws", "local"], typer.Option("--cloud", metavar="[aws|local]", help="Whose offers to show.")
    ] = "aws",
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
            "--region",
            metavar="REGION",
            help="Show this region. Repeatable.",
            show_default="that of your AWS settings",
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
    from spotrun.errors import SpecInvalid
    from spotrun.report import quotes as shown

    wanted = None if accelerators is None else _canonical(accelerators)
    types, regions = tuple(instance_type or ()), tuple(region or ())
    found = _local(wanted, types, regions) if cloud == "local" else _aws(wanted, types, regions, advisor)
    if not found.quotes:
        raise SpecInvalid(f"{cloud} rents out nothing of the kind there", hint="ask for less, or in another --region")
    if as_json:
        print_json(shown.as_json(found, sort))
    else:
        shown.show(found, sort)


def _canonical(accelerators: str) -> str:
    from spotrun.errors import SpecInvalid
    from spotrun.spec.values import read_accelerators
    from spotrun.units import Unreadable

    try:
        return str(read_accelerators(accelerators))
    except Unreadable as error:
        raise SpecInvalid(f"--accelerators: {error.args[0]}", hint="write it like A10G:1") from error


def _local(accelerators: str | None, types: tuple[str, ...], regions: tuple[str, ...]) -> Quotes:
    from spotrun.cli.wiring import any_cloud

    return any_cloud().quotes(accelerators, types, regions)


def _aws(accelerators: str | None, types: tuple[str, ...], regions: tuple[str, ...], advisor: str | None) -> Quotes:
    from spotrun.clock import system_clock
    from spotrun.clouds.aws.config import AwsConfig
    from spotrun.errors import CloudError

    try:
        from spotrun.clouds.aws.advisor import read_advice, with_bands
        from spotrun.clouds.aws.calls import default_region
        from spotrun.clouds.aws.quotes import read_quotes
    except ModuleNotFoundError as error:
        raise CloudError(f"aws needs the Python package {error.name}", hint="pip install 'spotrun[aws]'") from error
    config = AwsConfig(regions=regions or (default_region(),), instance_types=types)
    clock = system_clock()
    advice = None if advisor is None else read_advice(advisor, clock)
    found = read_quotes(config, clock, accelerators)
    return found if advice is None else with_bands(found, advice)
