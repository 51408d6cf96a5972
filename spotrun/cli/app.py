"""
The `spotrun` command. Each verb is a thin file: parse, call, show.

Nothing heavy is imported before a verb is chosen, so that `spotrun --help` stays quick.
"""

from __future__ import annotations

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
)

for verb in (
    launch,
    offers,
    plan,
    simulate,
    validate,
    status,
    logs,
    ssh,
    events,
    why,
    report,
    compare,
    bill,
    stop,
    down,
    resume,
    tick,
    reap,
    doctor,
    chaos,
):
    app.command()(verb)
app.command("verify-resume")(verify_resume)
app.command("ps", hidden=True, help="The same as status.")(status)
app.add_typer(checkpoints.app, name="checkpoints")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"spotrun {__version__}")
        raise typer.Exit


@app.callback()
def spotrun(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="And no more.")
    ] = False,
) -> None:
    """Train on interruptible GPUs, exactly, and know what every epoch cost."""


def main() -> NoReturn:
    """The console script: a SpotrunError becomes its message, its hint and its exit code."""
    try:
        app()
    except SpotrunError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left, as `| head` does
        sys.exit(0)
    sys.exit(0)
