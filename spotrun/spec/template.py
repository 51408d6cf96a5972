"""Writes a first job file for a script. The file lists the most useful optional keys in comments."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spotrun.spec.file import SHELLS
from spotrun.spec.schema import json_schema
from spotrun.spec.values import name_from, written

REQUIREMENTS = "requirements.txt"
SCHEMA_FILE = ".spotrun.schema.json"
"""
Name of the file with the schema of a job. It lies next to the job, where an editor reads it, because the schema is not
published on the web.
"""


def schema_line(place: str) -> str:
    """
    Return a comment line for a job file. The line tells an editor's YAML server where the schema is. With the schema,
    the editor can complete and check the file.
    """
    return f"# yaml-language-server: $schema={place}\n"


def schema_text() -> str:
    """Return the JSON Schema of job files, as the text of a file."""
    return json.dumps(json_schema(), indent=2) + "\n"


class Rented(NamedTuple):
    """
    The answer to where and what a first job rents: a cloud, the store of its runs, the key under resources that names
    what to rent, with its value, and the region; None for the cloud's default.
    """

    cloud: str
    store: str
    key: str
    value: str
    region: str | None = None


def first_job(script: Path, arguments: Sequence[str], job: Path, rented: Rented | None = None) -> str:
    """
    Return the text of a job file that trains `script` with `arguments`, on this machine unless `rented` says where. The
    text is for the file `job`, which is in the same folder as the script.
    """
    train = _command_lines(script, arguments) if script.suffix in SHELLS else _script_lines(script, arguments)
    found = " (there is one)" if (script.parent / REQUIREMENTS).is_file() else ""
    return schema_line(SCHEMA_FILE) + (
        f"# `spotrun validate {job.name}` checks this file; `spotrun validate --schema` has every key.\n"
        f"name: {written(name_from(script.stem))}\n"
        f"\ntrain:\n{train}"
        f"\n# What each instance does once before it trains{found}:\n"
        f"# setup: pip install -r {REQUIREMENTS}\n"
        f"\nresources:\n{_HERE if rented is None else _rented_lines(rented)}"
        "  # max_price: 2.50          # the most that an hour of an instance may cost, in US dollars\n"
        f"\n{'# ' if rented is None else ''}budget: {{max_usd: 10}}      # stop before the run costs more\n"
        "# policy: {deadline: 8h}     # be done by then, at the least cost\n"
        f"{_KEPT_HERE if rented is None else _kept_in(rented)}\n"
        '# outputs: [best.ckpt, "*.csv"]          # which files of the script to store, instead of all\n'
    )


def _script_lines(script: Path, arguments: Sequence[str]) -> str:
    args = f"args: [{', '.join(map(written, arguments))}]" if arguments else '# args: [--epochs, "20"]'
    return f"  script: {written(script.name)}\n  {args}\n"


def _command_lines(script: Path, arguments: Sequence[str]) -> str:
    made = folders_made_in(script.read_text(errors="replace"))
    state = f"state: [{', '.join(f'{folder}/' for folder in made)}]" if made else "# state: [out/]"
    return (
        f"  run: {written(shlex.join(['bash', script.name, *arguments]))}\n"
        "  # The folders and files that the script writes, and continues from after an interruption:\n"
        f"  {state}\n"
    )


_NAME = r"\w[\w.-]*(?:/\w[\w.-]*)*"
_QUOTED = re.compile(rf"""(["'])({_NAME}/?)\1""")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_MKDIR = re.compile(rf"(?:^|[;&|({{]|\bthen|\bdo)\s*mkdir +(?:-p +)?((?:{_NAME}/? *)+)(?=$|[;&|)])", re.MULTILINE)
_WRITTEN = re.compile(rf"(?:> *|\s-o +|\s--output[ =])({_NAME})/[^/\s;&|)]+(?=$|[\s;&|)])", re.MULTILINE)


def folders_made_in(shell: str) -> list[str]:
    """
    Return the folders of the work folder that a shell script makes (`mkdir`), or writes files into (`>`, `-o`). Return
    nothing if the script changes its folder, because its paths then mean something else.
    """
    text = _QUOTED.sub(r"\2", _COMMENT.sub("", shell))
    if re.search(r"\b(?:cd|pushd)\b", text):
        return []
    made = [name.rstrip("/") for names in _MKDIR.findall(text) for name in names.split()]
    found = sorted({*made, *_WRITTEN.findall(text)})
    return [folder for folder in found if not any(folder.startswith(f"{other}/") for other in found)]


_HERE = (
    "  cloud: local               # a rehearsal on this machine, at simulated prices; aws, gcp and slurm rent\n"
    "  # accelerators: A10G:1     # the GPUs of an instance\n"
)
_KEPT_HERE = "# checkpoint: {uri: s3://my-bucket/runs}    # where runs are kept, instead of ~/.spotrun/runs"


def _kept_in(rented: Rented) -> str:
    return f"checkpoint: {{uri: {written(rented.store)}}}    # where runs are kept"


def _rented_lines(rented: Rented) -> str:
    wanted = f"  {rented.key}: {written(rented.value)}"
    region = "" if rented.region is None else f"  region: {written(rented.region)}\n"
    listed = f"`spotrun offers --cloud {rented.cloud}` lists types and prices"
    return f"  cloud: {rented.cloud}\n{region}{wanted:<28} # {listed}\n"
