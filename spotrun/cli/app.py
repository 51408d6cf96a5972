"""
The `spotrun` command. Each verb has a short module that only parses the arguments, calls other modules, and shows the
result.

To keep `spotrun --help` fast, a verb's module is imported only when the verb is used.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from spotrun.cli.plain_help import HELP, ListedVerb, VerbGroup
from spotrun.errors import NO_ROOM
from spotrun.runs.boundary import exit_code
from spotrun.runs.unread import go_on_unread_here

VERBS = {
    "init": ListedVerb("Write a first job file for a script. Its comments show other useful keys.", "train.py"),
    "launch": ListedVerb(
        "Train a job to its end, on spot capacity where possible. A script needs no job file.",
        "train.yaml --deadline 8h",
    ),
    "sweep": ListedVerb(
        "Train a job with different parameters, under one budget and one deadline; the worst trials stop early.",
        "train.yaml --grid lr=1e-3,3e-4 --budget 40",
    ),
    "offers": ListedVerb(
        "Show what can be rented: current and recent prices, how much spot saves, and what your quotas allow.",
        "--cloud aws --accelerators A10G:1",
    ),
    "plan": ListedVerb(
        "Forecast what a job will cost and when it will end. Nothing is rented.",
        "train.yaml --work 3h --budget 40",
    ),
    "estimate": ListedVerb(
        "Compare what a training costs on demand, on spot, and on a machine of your own.",
        "examples/studies/parkopedia.yaml",
    ),
    "bench": ListedVerb(
        "Measure how many samples per second and per dollar a job trains on several instance types.",
        "train.yaml --types T4:1,A10G:1 --budget 2",
    ),
    "simulate": ListedVerb(
        "Compare strategies on recorded markets: their cost, and how often they miss the deadline.",
        "--traces traces/ --work 8h --deadline 12h",
    ),
    "validate": ListedVerb("Check a job file. Show the line of each mistake, and how to fix it.", "train.yaml"),
    "status": ListedVerb("List all runs, newest first.", "--watch"),
    "view": ListedVerb("Show all runs, or one run, as live pages in a web browser.", "resnet50"),
    "logs": ListedVerb("Print the output of the training, attempt by attempt.", "resnet50 --follow"),
    "ssh": ListedVerb("Open a shell on the instance where a run trains.", "resnet50"),
    "events": ListedVerb("List everything that happened to a run, in order.", "resnet50"),
    "why": ListedVerb("Explain each decision of a run in one sentence, and say what comes next.", "resnet50"),
    "fetch": ListedVerb(
        "Fetch the files that the script has written, during the run and after it.", "resnet50 '*.ckpt' --to results"
    ),
    "report": ListedVerb(
        "Show what each completed epoch cost, in dollars and in downtime.", "resnet50 --html report.html"
    ),
    "metrics": ListedVerb("Export the costs and states of runs to Prometheus.", "--listen 127.0.0.1:9753"),
    "spans": ListedVerb(
        "Send the history of a run to OpenTelemetry, as spans whose times come from the run's ledger.", "resnet50"
    ),
    "compare": ListedVerb("Show the bills of several runs side by side.", "on-demand spot"),
    "bill": ListedVerb(
        "Compare a run's recorded cost with the cloud's bill.",
        "resnet50 --cur 'cur/2026-11/*.csv.gz'",
    ),
    "stop": ListedVerb("Save a last checkpoint of a run, then end the run.", "resnet50"),
    "down": ListedVerb("End a run and its instances now, without a final checkpoint.", "resnet50"),
    "resume": ListedVerb("Continue a run that lost its runner, was stopped or failed.", "resnet50 --detach"),
    "tick": ListedVerb("Do one round of a runner's work for a run, then exit.", "resnet50"),
    "night": ListedVerb("Train a job every night, controlled by a function in the cloud."),
    "reap": ListedVerb("Find and end instances that no run needs any more.", "--cloud aws --region us-east-1"),
    "doctor": ListedVerb("Check that this machine and the store have what a run needs.", "aws train.yaml"),
    "chaos": ListedVerb(
        "Interrupt the instance that a run trains on, as a cloud interrupts a spot instance.", "resnet50 --notice 30s"
    ),
    "verify-resume": ListedVerb(
        "Check that a resumed training ends bit for bit like an undisturbed one.", "train.py -- --epochs 2"
    ),
    "checkpoints": ListedVerb("List, verify, export, import and prune checkpoints."),
    "rm": ListedVerb(
        "Delete the folders of ended runs: ledger, checkpoints, files, logs and bill.", "resnet50 --dry-run"
    ),
    "prune": ListedVerb("Delete the folders of old runs, as `spotrun rm` does for single runs.", "--older 30d"),
    "version": ListedVerb("Show the version, its git commit if known, and the installed extras."),
    "ps": ListedVerb(same_as="status", arguments="--watch"),
    "list": ListedVerb(same_as="status", arguments="--watch"),
    "ls": ListedVerb(same_as="status", arguments="--watch"),
    "queue": ListedVerb(same_as="status", arguments="--watch"),
    "run": ListedVerb(same_as="launch", arguments="train.yaml --deadline 8h"),
}
"""
The verbs, each with the first line of its help and the arguments of an example. A test compares these lines with the
verbs' docstrings.
"""


HEADINGS = {
    "Before a run": ("init", "validate", "doctor", "offers", "plan", "estimate", "bench", "simulate", "verify-resume"),
    "Train": ("launch", "sweep", "stop", "down", "resume", "tick", "night", "chaos"),
    "Look": ("status", "view", "logs", "events", "why", "ssh"),
    "Results and bills": ("fetch", "checkpoints", "report", "compare", "metrics", "spans", "bill"),
    "Clean up": ("rm", "prune", "reap"),
    "spotrun itself": ("version",),
}


_END = "`spotrun stop RUN`, which saves a last checkpoint, or `spotrun down RUN`, which ends the run now"
INSTEAD = {
    **dict.fromkeys(("kill", "cancel", "terminate", "abort", "end", "halt"), _END),
    **dict.fromkeys(("start", "submit", "train", "exec", "up"), "`spotrun launch JOB.yaml`, or `spotrun resume RUN`"),
    **dict.fromkeys(
        ("delete", "remove", "destroy"),
        "`spotrun down RUN` ends a run, and `spotrun rm RUN` deletes the folder of an ended run",
    ),
    "help": "`spotrun --help`, or `spotrun VERB --help`",
    **dict.fromkeys(("cost", "costs", "price", "prices"), "`spotrun report RUN`, `spotrun plan` or `spotrun offers`"),
    **dict.fromkeys(("show", "info", "describe", "watch"), "`spotrun status`, or `spotrun why RUN`"),
    **dict.fromkeys(("attach", "tail", "output"), "`spotrun logs RUN --follow`"),
    **dict.fromkeys(("download", "get", "cp"), "`spotrun fetch RUN`"),
    **dict.fromkeys(("check", "lint"), "`spotrun validate JOB.yaml`, or `spotrun doctor`"),
}
"""Words that other tools have for a verb, each with what to type instead. No verb that ends or deletes has an alias."""


class _Verbs(VerbGroup):
    verbs = VERBS
    headings = HEADINGS
    instead = INSTEAD
    unsuggested = frozenset({"rm", "prune", "reap", "down"})


app = typer.Typer(
    name="spotrun",
    cls=_Verbs,
    help="Train on interruptible GPUs, exactly, and know what every epoch cost.",
    no_args_is_help=True,
    context_settings=HELP,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from spotrun.runs.installed import told

        print(told())
        raise typer.Exit


@app.callback()
def spotrun(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version, its git commit and the installed extras, and exit.",
        ),
    ] = False,
) -> None:
    """Train on interruptible GPUs, exactly, and know what every epoch cost."""


def _verb() -> str:
    """Return the verb of this call, or of which its verb is an alias; "" if the call has none."""
    word = next(iter(sys.argv[1:]), "")
    return VERBS[word].same_as or word if word in VERBS else ""


def main() -> NoReturn:
    """Run the console script. A SpotrunError is reported with its message and hint, and sets the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # not an error if the terminal lacks a character
    go_on_unread_here(output=_verb() not in HEADINGS["Look"])
    try:
        code = exit_code(app, sys.argv[1:])
        if sys.stdout is not None:  # it is None after `>&-`
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE and error.errno not in NO_ROOM:
            raise
        code = 0  # nothing reads any more what a verb under Look prints
        if error.errno in NO_ROOM:
            fix = f"\n  try: {NO_ROOM[error.errno]}" if error.filename else ""
            print(f"error: {error.filename or 'the output'} cannot be written: {error.strerror}{fix}", file=sys.stderr)
            code = 1
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python itself may still write when it ends
    sys.exit(code)
