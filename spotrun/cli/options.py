"""Arguments and flags that several commands share, and how answers are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, name (the newest of it) or full address.")]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", envvar="SPOTRUN_STORE", help="Where to look for runs.", show_default="~/.spotrun/runs"),
]
LaunchStoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", help="Where the run is kept.", show_default="checkpoint.uri, SPOTRUN_STORE, ~/.spotrun/runs"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Leave a runner in the background and return.")]
SpecArgument = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="What to run.")]


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
