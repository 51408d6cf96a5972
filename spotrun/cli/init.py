"""`spotrun init`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.options import write_text
from spotrun.errors import SpecInvalid


def init(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="A training script.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments for the script, to be written into the job file."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="JOB.yaml", help="Write the job to this file. Default: SCRIPT.yaml, next to the script."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a first job file for a script. Its comments show other useful keys."""
    from shlex import quote

    from spotrun.runs.job_checks import without_checkpoints
    from spotrun.spec.file import check_job, load_spec, require_script
    from spotrun.spec.template import SCHEMA_FILE, first_job, schema_text

    require_script(script)
    job = script.with_suffix(".yaml") if out is None else out
    if job.is_dir() or not job.parent.is_dir():
        raise SpecInvalid(f"{job} is a folder, or its folder does not exist", hint="use --out to name a file")
    if job.parent.resolve() != script.parent.resolve():
        hint = "name a file in the script's folder, because a run uploads only the folder of its job file"
        raise SpecInvalid(f"{job} is not next to {script}", hint=hint)
    if job.exists() and not force:
        raise SpecInvalid(f"{job} exists already", hint="name another file with --out, or add --force")
    text = first_job(script, arguments or (), job)
    check_job(job, text)
    write_text(job, text)
    write_text(job.with_name(SCHEMA_FILE), schema_text())
    typed = quote(str(job))
    print(f"wrote {job}, a job that trains {script.name} on this machine. Next:")
    warning = without_checkpoints(load_spec(job))
    if warning is None:
        print(f"  spotrun verify-resume {typed}    # does it resume with the same bits? Trains it twice")
    print(f"  spotrun launch {typed}           # trains it; comments in the file show how to rent")
    if warning is not None:
        print(warning)
