"""`spotrun init`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import write_text
from spotrun.cli.plain_help import ARGUMENTS
from spotrun.errors import SpecInvalid

if TYPE_CHECKING:
    from spotrun.clouds.cloud import Cloud
    from spotrun.spec.template import Rented


def init(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py|SCRIPT.sh", help="A Python script or a shell script.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar=ARGUMENTS, help="Arguments for the script, to be written into the job file."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="JOB.yaml", help="Write the job to this file. Default: SCRIPT.yaml, next to the script."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    cloud: Annotated[
        str | None,
        typer.Option(
            "--cloud",
            metavar="[aws|gcp]",
            help="Write a job that rents on this cloud, with the bucket that the files in infra/ make.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="ADDRESS", help="With --cloud: keep runs in this bucket, s3://… or gs://…."),
    ] = None,
    instance_type: Annotated[
        str | None,
        typer.Option("--instance-type", metavar="TYPE", help="With --cloud: rent this type, instead of a GPU."),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            metavar="REGION",
            help="With --cloud: rent in this region.",
            show_default="the region of your settings",
        ),
    ] = None,
) -> None:
    """Write a first job file for a script. Its comments show other useful keys."""
    from spotrun.spec.file import check_job, require_script
    from spotrun.spec.template import SCHEMA_FILE, first_job, schema_text

    require_script(script)
    job = script.with_suffix(".yaml") if out is None else out
    _require_place(job, script, force)
    rented = _rented(cloud, store, instance_type, region)
    text = first_job(script, arguments or (), job, rented)
    flags = {
        "resources.cloud": cloud,
        "checkpoint.uri": store,
        "resources.instance_type": instance_type,
        "resources.region": region,
    }
    check_job(job, text, flags)
    write_text(job, text)
    write_text(job.with_name(SCHEMA_FILE), schema_text())
    _say_next(job, script, rented)


def _require_place(job: Path, script: Path, force: bool) -> None:
    """Raise SpecInvalid if the job cannot be written to the file `job`."""
    if job.is_dir() or not job.parent.is_dir():
        raise SpecInvalid(f"{job} is a folder, or its folder does not exist", hint="use --out to name a file")
    if job.parent.resolve() != script.parent.resolve():
        hint = "name a file in the script's folder, because a run uploads only the folder of its job file"
        raise SpecInvalid(f"{job} is not next to {script}", hint=hint)
    if job.exists() and not force:
        raise SpecInvalid(f"{job} exists already", hint="name another file with --out, or add --force")


def _say_next(job: Path, script: Path, rented: Rented | None) -> None:
    """Print the commands that a user types next, and a warning if the script makes no checkpoints."""
    from shlex import quote

    from spotrun.runs.job_checks import without_checkpoints
    from spotrun.spec.file import load_spec

    typed, warning = quote(str(job)), without_checkpoints(load_spec(job))
    where = "this machine" if rented is None else rented.cloud
    print(f"wrote {job}, a job that trains {script.name} on {where}. Next:")
    if rented is not None:
        print(f"  spotrun doctor {rented.cloud} {typed}        # whether you can rent there; rents nothing")
        print(f"  spotrun launch {typed} --dry-run    # what it would rent, and at what price")
    elif warning is None:
        print(f"  spotrun verify-resume {typed}    # does it resume with the same bits? Trains it twice")
    print(f"  spotrun launch {typed}           # trains it; comments in the file show further keys")
    if warning is not None:
        print(warning)


def _rented(cloud: str | None, store: str | None, instance_type: str | None, region: str | None) -> Rented | None:
    """
    Return where and what the job rents; None if no cloud is named, or if it is the local one.

    Raises:
        SpecInvalid: the cloud keeps no runs in buckets, or no bucket was named or found.
    """
    from spotrun.clouds.registry import cloud_named
    from spotrun.spec.template import Rented

    if cloud is None:
        flags = {"--store": store, "--instance-type": instance_type, "--region": region}
        given = [flag for flag, value in flags.items() if value is not None]
        if given:
            raise SpecInvalid(f"{given[0]} works only with --cloud", hint="add --cloud aws or --cloud gcp")
        return None
    named = cloud_named(cloud)
    if named.here and store is None and instance_type is None and region is None:
        return None
    if not named.example_kind:
        raise SpecInvalid(f"init writes no job for {cloud}", hint="leave out --cloud, and edit the file")
    place, kind = region or named.usual_region(), ("accelerators", named.example_kind)
    if store is None:
        store, place = _usual_store(named, region, place)
    return Rented(cloud, store, *(kind if instance_type is None else ("instance_type", instance_type)), place)


def _usual_store(cloud: Cloud, region: str | None, place: str | None) -> tuple[str, str | None]:
    """
    Return the store that infra/ made, and the region to rent in. This is `region` if the user named it. Otherwise it is
    `place`, or the bucket's region if the bucket is elsewhere, because a run with a budget begins in that region.

    Raises:
        SpecInvalid: there is no such store, its bucket is not in the region that the user named, or the cloud does not
            have this region.
    """
    from spotrun.clouds.cloud import RentalFlags

    wish = RentalFlags(() if region is None else (region,))
    cloud.require_regions(wish.regions)
    found = cloud.usual_store(None, wish)
    makes = f"infra/{cloud.name}/README.md makes one"
    if found is None:
        where = f"your {cloud.name} account" + ("" if place is None else f" for {place}")
        hint = f"{makes}; or name another region by --region, or your bucket by --store"
        raise SpecInvalid(f"there is no bucket of spotrun's in {where}", hint=hint)
    near = found.region in ("", *map(str.lower, cloud.regions(None, wish)))
    if region is not None and not near:
        what = f"spotrun's bucket in your {cloud.name} account is in {found.region}, not in {region}: {found.uri}"
        raise SpecInvalid(what, hint=f"--region {found.region}; or name a bucket in {region} by --store: {makes}")
    return found.uri, place if near else found.region
