"""
spotrun as it is installed without any extra, simulated in this process: modules are imported, and verbs called.

    python -m tests.support.light FOLDER

FOLDER is one that `furnish` made. Prints JSON: why a module cannot be imported, and what each call said.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
ABSENT = {
    *("boto3", "botocore", "google", "google_crc32c", "lightning", "numpy", "opentelemetry", "prometheus_client"),
    *("pyarrow", "pytorch_lightning", "s3transfer", "scipy", "sklearn", "torch", "torchmetrics", "urllib3"),
}
"""What the extras bring."""
STORES = ("s3://bucket/runs", "gs://bucket/runs")


class Call(NamedTuple):
    words: tuple[str, ...]
    code: object
    said: str


class _WithoutExtras(PathFinder):
    """Finds what is installed, but for what the extras bring."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in ABSENT else PathFinder.find_spec(name, path, target)


def furnish(folder: Path) -> None:
    """A store with a run that has ended, jobs, and other files that verbs take."""
    from spotrun.store.local import LocalStore
    from tests.support.damaged_runs import SmallRun

    SmallRun(LocalStore(folder / "runs" / "demo-0123456789"))
    (folder / "train.py").write_text("import torch\nfrom pytorch_lightning import Trainer\n")
    (folder / "script.yaml").write_text("name: train\ntrain: {script: train.py}\n")
    (folder / "plain.yaml").write_text("name: plain\nrun: 'true'\npolicy: {expected_work: 1h}\n")
    (folder / "secret.yaml").write_text("run: 'true'\nsecrets: {TOKEN: 'ssm:/spotrun/TOKEN'}\n")
    (folder / "bill.parquet").write_bytes(b"PAR1")
    (folder / "weights.ckpt").write_bytes(b"PK")


VALUES = {
    "RUN": "demo",
    "SCRIPT": "train.py",
    "JOB.yaml": "plain.yaml",
    "FILE.ckpt": "weights.ckpt",
    "OUT.ckpt": "out.ckpt",
    "PATH": "traces",
}
"""What a verb is given for an argument in whose name this is."""
MORE = (
    "doctor",
    "doctor aws",
    "doctor aws secret.yaml --region us-east-1",
    "offers --region us-east-1",
    "offers --cloud local",
    "launch plain.yaml --dry-run",
    "launch plain.yaml --cloud aws -y",
    "launch plain.yaml --cloud aws --store s3://bucket/runs -y",
    "launch secret.yaml --cloud aws --store s3://bucket/runs --dry-run",
    "launch script.yaml -y",
    "launch train.py -y",
    "verify-resume train.py",
    "launch plain.yaml --init-from weights.ckpt -y",
    "verify-resume script.yaml",
    "launch plain.yaml --store s3://bucket/runs -y",
    "bill demo --cur bill.parquet",
    "report demo --html report.html",
    "report demo --json",
    "compare demo demo",
    "reap --cloud aws -y",
    "report s3://bucket/runs/demo-0123456789",
)
"""Calls beside those of each verb with what its help asks for."""


def main(folder: Path) -> None:
    sys.meta_path[sys.meta_path.index(PathFinder)] = _WithoutExtras  # type: ignore[index,call-overload]
    os.chdir(folder)
    os.environ |= {"SPOTRUN_STORE": str(folder / "runs"), "SPOTRUN_LOCAL_CLOUD": str(folder / "cloud")}
    calls = [_call(words) for words in _calls()]
    print(json.dumps({"calls": calls, "missing": dict(_not_importable())}))


def _not_importable() -> Iterator[tuple[str, str]]:
    """The places of our modules that cannot be imported, each with the package that it lacks."""
    for path in sorted((ROOT / "spotrun").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            yield path.relative_to(ROOT / "spotrun").as_posix(), str(error.name)


def _calls() -> Iterator[list[str]]:
    import typer
    from typer.core import TyperGroup

    from spotrun.cli.app import app

    def verbs(group: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
        for name, command in group.commands.items():
            if isinstance(command, TyperGroup):
                yield from verbs(command, [*words, name])
            else:
                yield [*words, name], command

    for words, command in verbs(typer.main.get_command(app), []):
        given = [*words, *(["x"] if words == ["view"] else _arguments(command))]  # with a run, it would serve for ever
        yield given
        if any("--store" in param.opts for param in command.params):
            yield from ([*given, "--store", store] for store in STORES)
    yield from (line.split() for line in MORE)


def _arguments(command: Any) -> Iterator[str]:
    for param in command.params:
        value = next((text for word, text in VALUES.items() if word in (param.metavar or "")), "")
        if param.param_type_name == "argument" and (param.required or value):
            yield value or "x"
        elif param.required:
            yield from (param.opts[0], value or "x")


def _call(words: list[str]) -> Call:
    from spotrun.cli.app import main as spotrun

    said = io.StringIO()
    sys.argv = ["spotrun", *words]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            spotrun()
        except SystemExit as end:
            code = end.code
        except BaseException:  # noqa: BLE001  whatever it is, it is what the caller asks about
            code = "traceback"
            traceback.print_exc()
    return Call(tuple(words), code, said.getvalue())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
