"""Arguments and flags that several commands share, and functions that write results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.plain_help import ARGUMENTS
from spotrun.errors import SpotrunError
from spotrun.runs.completion import job_files, run_names

_RUN = (
    "The run's id, its name (the newest one, first of those that this machine knows), a prefix of either, or its "
    "folder's address."
)
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help=_RUN, autocompletion=run_names)]
RunOrNewest = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help=f"{_RUN} Default: the newest run that was launched from this folder on this machine.",
        autocompletion=run_names,
        show_default=False,
    ),
]


def existing(context: typer.Context, store: str | None) -> str | None:
    """
    Return the store of the runs. If the flag names it, it must exist. If the environment variable names it, it need not
    exist yet, because the first launch creates it.

    Raises:
        StoreError: the flag names a folder that does not exist.
    """
    source = context.get_parameter_source("store")
    if store is not None and source is not None and source.name == "COMMANDLINE":
        from spotrun.runs.open_run import require_store

        require_store(store)
    return store


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        envvar="SPOTRUN_STORE",
        callback=existing,
        help="The store of the runs: a folder, s3://… or gs://….",
        show_default="~/.spotrun/runs",
    ),
]
LaunchStoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="The store for the run: a folder, s3://… or gs://….",
        show_default="the job's checkpoint.uri, else SPOTRUN_STORE, else ~/.spotrun/runs",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LaunchDryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be rented, and rent nothing.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DetachOption = Annotated[
    bool, typer.Option("--detach", "-d", help="Return at once, and leave a runner working in the background.")
]
PublishedAsOption = Annotated[
    str,
    typer.Option(
        "--published-as",
        metavar="[skypilot|adrs]",
        help="Meaning of a 1 in a JSON record: spot capacity (skypilot), or no spot capacity (adrs).",
    ),
]
SpecArgument = Annotated[
    Path,
    typer.Argument(
        metavar="JOB.yaml|SCRIPT.py",
        help="A job file, or a Lightning script.",
        autocompletion=job_files,
    ),
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar=ARGUMENTS, help="Arguments for the script. They replace those in the job."),
]


def print_json(value: object) -> None:
    """
    Print a command's result to stdout as JSON. Also record that stdout now contains the result, so that a later error
    is reported only on stderr.
    """
    import json

    from spotrun.runs import boundary

    print(json.dumps(value, indent=2, default=str))
    boundary.answered = True


@contextmanager
def progress_bar(*, quiet: bool, doing: str = "simulating") -> Iterator[Callable[[int, int], None]]:
    """
    Show a progress bar on the terminal. Yield a function that updates the bar. Its arguments are the amount of work
    done and the total amount.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def require_writable(path: Path) -> None:
    """
    Check that a file can be written at `path`, before any work is done for it.

    Raises:
        SpotrunError: the folder does not exist, or the user is not allowed to write there.
    """
    if path.is_dir() or not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise SpotrunError(f"cannot write {path}", hint="name a file in a folder that you can write to")


def write_text(path: Path, text: str) -> None:
    """
    Raises:
        SpotrunError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpotrunError(
            f"cannot write {path}: {error.strerror}", hint="name a file in a folder that you can write to"
        ) from error
