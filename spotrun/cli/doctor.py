"""`spotrun doctor`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, LaunchStoreOption, print_json

if TYPE_CHECKING:
    from spotrun.doctor.finding import Finding


def doctor(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[local|aws|gcp|slurm] [JOB.yaml]",
            help="Also check your account on this cloud, and the needs of this job.",
        ),
    ] = None,
    store: LaunchStoreOption = None,
    region: Annotated[str | None, typer.Option("--region", metavar="REGION", help="The region to rent in.")] = None,
    accelerators: Annotated[
        str | None, typer.Option("--accelerators", metavar="NAME:COUNT", help="The accelerators to check.")
    ] = None,
    instance_type: Annotated[
        str | None, typer.Option("--instance-type", metavar="TYPE", help="The instance type to check.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            metavar="IMAGE",
            help="The machine image to check: ami-… or an SSM parameter on aws, a path on gcp.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Check that this machine and the store have what a run needs.

    Nothing is rented. The checks remove what they create, except EC2's role for spot, AWSServiceRoleForEC2Spot.
    """
    from spotrun.clouds.cloud import RentalFlags
    from spotrun.doctor.finding import ChecksFailed, Verdict
    from spotrun.runs.doctor_checks import findings

    found = []
    wish = RentalFlags(
        () if region is None else (region,),
        () if accelerators is None else (accelerators,),
        () if instance_type is None else (instance_type,),
        image,
    )
    for finding in findings(subjects or [], store, wish):
        if not as_json:
            _show(finding)
        if finding.verdict is not Verdict.WAITS:
            found.append(finding)
    failures = [finding for finding in found if finding.verdict is Verdict.FAILED]
    if as_json:
        import msgspec

        print_json({"ok": not failures, "checks": msgspec.to_builtins(found)})
    if failures:
        raise ChecksFailed(failures)
    if not as_json:
        print(_ready(found))


def _ready(found: list[Finding]) -> str:
    from spotrun.doctor.finding import Verdict
    from spotrun.units import count_of

    warnings = sum(finding.verdict is Verdict.WARNED for finding in found)
    return f"ready, with {count_of(warnings, 'warning')} above" if warnings else "ready"


def _show(finding: Finding) -> None:
    from spotrun.doctor.finding import Verdict
    from spotrun.report.folding import say
    from spotrun.report.tables import plain

    word = finding.verdict.upper() if finding.verdict is Verdict.FAILED else finding.verdict
    say(f"{word:8}{finding.name}: {plain(finding.detail)}", indent=8)
    if finding.hint:
        say(f"{'':8}  try: {plain(finding.hint)}", indent=10)
