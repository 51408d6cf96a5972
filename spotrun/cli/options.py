"""Arguments and flags that several commands share, and how answers are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Its id, its name (the newest run of that name) or the address of its folder."),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        envvar="SPOTRUN_STORE",
        help="Where to look for runs: a folder, s3://… or gs://….",
        show_default="~/.spotrun/runs",
    ),
]
LaunchStoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="Where to keep the run: a folder, s3://… or gs://….",
        show_default="the job's checkpoint.uri, else SPOTRUN_STORE, else ~/.spotrun/runs",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Leave a runner in the background and return.")]
SpecArgument = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]


def print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2, default=str))


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal while lifetimes are simulated."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("simulating", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def write_text(path: Path, text: str) -> None:
    """
    Raises:
        SpotrunError: the file cannot be written.
    """
    from spotrun.errors import SpotrunError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpotrunError(
            f"cannot write {path}: {error.strerror}", hint="name a file in a folder that you may write"
        ) from error
