"""
The `spotrun` command. Each verb is a thin file: parse, call, show.

Nothing heavy is imported before a verb is chosen, so that `spotrun --help` stays quick.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

from spotrun import __version__
from spotrun.cli import checkpoints
from spotrun.cli.bill import bill
from spotrun.cli.chaos import chaos
from spotrun.cli.compare import compare
from spotrun.cli.doctor import doctor
from spotrun.cli.down import down
from spotrun.cli.events import events
from spotrun.cli.launch import launch
from spotrun.cli.logs import logs
from spotrun.cli.offers import offers
from spotrun.cli.plain_help import Verbs, add_verbs
from spotrun.cli.plan import plan
from spotrun.cli.reap import reap
from spotrun.cli.report import report
from spotrun.cli.resume import resume
from spotrun.cli.simulate import simulate
from spotrun.cli.ssh import ssh
from spotrun.cli.status import status
from spotrun.cli.stop import stop
from spotrun.cli.tick import tick
from spotrun.cli.validate import validate
from spotrun.cli.verify_resume import verify_resume
from spotrun.cli.why import why
from spotrun.errors import SpotrunError

INTERRUPTED = 130

app = typer.Typer(
    name="spotrun",
    help="Train on interruptible GPUs, exactly, and know what every epoch cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

VERBS: Verbs = {
    "launch": (launch, "train.yaml --deadline 8h"),
    "offers": (offers, "--cloud aws --accelerators A10G:1"),
    "plan": (plan, "train.yaml --work 3h --budget 40"),
    "simulate": (simulate, "--traces traces/ --work 8h --deadline 12h"),
    "validate": (validate, "train.yaml"),
    "status": (status, "--watch"),
    "logs": (logs, "resnet50 --follow"),
    "ssh": (ssh, "resnet50"),
    "events": (events, "resnet50"),
    "why": (why, "resnet50"),
    "report": (report, "resnet50 --html report.html"),
    "compare": (compare, "on-demand spot"),
    "bill": (bill, "resnet50 --cur 'cur/2026-11/*.csv.gz'"),
    "stop": (stop, "resnet50"),
    "down": (down, "resnet50"),
    "resume": (resume, "resnet50 --detach"),
    "tick": (tick, "resnet50"),
    "reap": (reap, "--cloud aws --region us-east-1"),
    "doctor": (doctor, "aws train.yaml"),
    "chaos": (chaos, "resnet50 --notice 30s"),
    "verify-resume": (verify_resume, "train.py -- --epochs 2"),
}
"""Each with the arguments of an example for its help."""
add_verbs(app, "spotrun", VERBS)
app.command("ps", hidden=True, help="The same as status.")(status)
app.add_typer(checkpoints.app, name="checkpoints")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"spotrun {__version__}")
        raise typer.Exit


@app.callback()
def spotrun(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train on interruptible GPUs, exactly, and know what every epoch cost."""


def main() -> NoReturn:
    """The console script: a SpotrunError becomes its message, its hint and its exit code."""
    try:
        code = _exit_code()
        if sys.stdout is not None:  # as it is after `>&-`
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        code = 0  # the reader of our output has left, as `| head` does
        if error.errno == errno.ENOSPC:
            print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
            code = 1
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python writes when it ends
    sys.exit(code)


def _exit_code() -> int | str | None:
    try:
        app()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None  # Typer makes it an exit code of 1
        return end.code
    except SpotrunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
