"""`spotrun validate`"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, LaunchStoreOption, print_json, write_text
from spotrun.errors import SpecInvalid
from spotrun.runs.flags import known_word

if TYPE_CHECKING:
    from spotrun.spec.model import RunSpec
    from spotrun.spec.sky.reading import Reading


def validate(
    spec_path: Annotated[
        Path | None, typer.Argument(metavar="[JOB.yaml|SCRIPT.py]", help="A job file, or a script.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of job files, for editors.")] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="sky", help="Read a SkyPilot file: show each key's translation, or what to write instead."
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="JOB.yaml", help="With --from: file for the job, next to the SkyPilot file."),
    ] = None,
    store: LaunchStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Check a job file. Show the line of each mistake, and how to fix it.

    This command does not call the cloud. `spotrun launch --dry-run` shows whether the cloud has the resources.
    """
    from spotrun.address import absolute
    from spotrun.clouds.registry import cloud_of
    from spotrun.runs.asking import say
    from spotrun.runs.job_checks import about_home, check_script
    from spotrun.runs.offline_checks import check_job_offline
    from spotrun.runs.open_run import default_store
    from spotrun.spec.file import load_spec, placed
    from spotrun.spec.schema import json_schema

    if schema:
        print_json(json_schema())
        return
    if spec_path is None:
        given = "JOB.yaml" if source is None else f"--from {quote(source)} SKY.yaml"
        raise SpecInvalid("no file was named", hint=f"spotrun validate {given}")
    if write is not None and source is None:
        raise SpecInvalid("--write works only with --from sky", hint="add --from sky, or leave out --write")
    if source is not None:
        known_word("--from", source, ("sky",))
        spec = _from_sky(spec_path, default_store(), write, as_json=as_json)
    else:
        overrides = {"checkpoint.uri": store and absolute(store)}
        spec = load_spec(spec_path, overrides, default_store(), check=check_job_offline)
    simulated = cloud_of(spec).simulated
    with placed(spec_path):
        unread = check_script(spec, here=cloud_of(spec).here)
    for note in filter(None, (unread, about_home(spec))):
        say(f"note: {note}")
    if not simulated:
        _say_what_was_not_asked(spec)
    if as_json and source is None:
        print_json(spec.to_dict())
    elif not as_json:
        print(f"{spec_path} is valid: {spec.name}")


def _say_what_was_not_asked(spec: RunSpec) -> None:
    from spotrun.runs.asking import say
    from spotrun.runs.offline_checks import misspelled_kinds

    for mistake in misspelled_kinds(spec):
        say(f"note: {mistake.message}: {mistake.hint}")
    cloud = spec.resources.cloud
    say(f"note: {cloud} was not asked whether it has these resources; `spotrun launch --dry-run` asks the cloud")


def _from_sky(path: Path, store: str, write: Path | None, *, as_json: bool) -> RunSpec:
    """
    Translate a SkyPilot file into a job, and show the translation of each key. If `write` is given, write the job to
    that file. Return the job. If the SkyPilot file names no cloud, the job may be impossible on the local one.

    Raises:
        SpecInvalid: a key cannot be translated, or the job cannot be written to `write`.
    """
    from spotrun.clouds.registry import cloud_of
    from spotrun.runs.asking import say
    from spotrun.runs.first_look import not_offered
    from spotrun.runs.job_checks import left_behind
    from spotrun.spec.file import placed
    from spotrun.spec.sky.reading import read_sky, same_job
    from spotrun.units import count_of

    reading = read_sky(path, store)
    if write is not None:
        _require_room(path, write)
    if as_json:
        job = None if reading.spec is None else reading.spec.to_dict()
        print_json({"keys": [row.to_dict() for row in reading.rows], "notes": reading.notes, "job": job})
    else:
        _show(reading)
    if reading.spec is None:
        keys = count_of(reading.refused, "line")
        raise SpecInvalid(
            f"{path} cannot be translated: "
            f"{keys} above {'says' if reading.refused == 1 else 'say'} what to write instead",
            hint="correct the file, or a copy of it; docs/skypilot.md has all keys",
        )
    if write is not None:
        text = reading.text()
        assert same_job(write, text, store) == reading.spec, "the written file describes a different job"
        write_text(write, text)
        say(f"wrote {write}")
    with placed(path):
        left_behind(reading.spec)
        simulated = cloud_of(reading.spec).simulated
        if simulated and (mistake := not_offered(reading.spec)) is not None:
            if reading.names_cloud:
                raise mistake
            say(f"note: the job cannot run on {reading.spec.resources.cloud}: {mistake.message}")
    return reading.spec


def _show(reading: Reading) -> None:
    from spotrun.runs.asking import say
    from spotrun.runs.job_checks import without_checkpoints

    width = max((len(row.key) for row in reading.rows), default=0)
    for row in reading.rows:
        print(f"{'' if row.line is None else row.line:>4}  {row.key:<{min(width, 40)}}  {row}")
    if reading.spec is None:
        return
    warning = without_checkpoints(reading.spec)
    for note in (*reading.notes, *(() if warning is None else (warning,))):
        say(f"note: {note}")


def _require_room(path: Path, write: Path) -> None:
    if str(write) == "-":
        raise SpecInvalid("--write needs a file name, not -", hint="`--json` prints the job")
    if write.is_dir() or write.parent.resolve() != path.parent.resolve():
        hint = "name a file in the folder of the SkyPilot file: a run uploads the folder of its job"
        raise SpecInvalid(f"--write: {write} is not in the same folder as {path}", hint=hint)
    if write.exists():
        raise SpecInvalid(f"--write: {write} exists already", hint="name another file")
