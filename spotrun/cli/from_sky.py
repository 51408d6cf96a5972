"""`spotrun validate --from sky`: a file of SkyPilot's, key by key."""

from __future__ import annotations

from pathlib import Path

from spotrun.cli.asking import say
from spotrun.cli.before_launch import without_checkpoints
from spotrun.cli.options import print_json, write_text
from spotrun.errors import SpecInvalid
from spotrun.spec.model import RunSpec
from spotrun.spec.sky.reading import Reading, read_sky, same_job
from spotrun.units import count_of


def from_sky(path: Path, store: str, write: Path | None, *, as_json: bool) -> tuple[RunSpec, bool]:
    """
    Show what becomes of each key, and write the job if `write` names a file. The answer is the job, and whether the
    file names a cloud, and so says where it can be had.

    Raises:
        SpecInvalid: a key was not taken, or the job may not be written there.
    """
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
            f"{path} is no job yet: {keys} above {'says' if reading.refused == 1 else 'say'} what to write instead",
            hint="correct the file, or a copy of it; docs/skypilot.md has all keys",
        )
    if write is not None:
        text = reading.text()
        assert same_job(write, text, store) == reading.spec, "the written job is another one"
        write_text(write, text)
        say(f"wrote {write}")
    return reading.spec, reading.names_cloud


def _show(reading: Reading) -> None:
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
        raise SpecInvalid("--write names a file", hint="`--json` prints the job with its rows")
    if write.is_dir() or write.parent.resolve() != path.parent.resolve():
        hint = "name a file in the folder of the other: a run uploads the folder of its job"
        raise SpecInvalid(f"--write: {write} is not beside {path}", hint=hint)
    if write.exists():
        raise SpecInvalid(f"--write: {write} exists already", hint="name another file")
