"""`spotrun verify-resume`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, ScriptArguments, SpecArgument, print_json
from spotrun.errors import NotIdentical, SpecInvalid, SpotrunError

if TYPE_CHECKING:
    from spotrun.verify.kills import KillPlan

KILLS = 4
"""Number of kills if neither --kills nor --at is given."""


KillsOption = Annotated[
    int | None,
    typer.Option(
        "--kills",
        metavar="N",
        min=1,
        help="Number of times to kill the training, each time at a random step.",
        show_default="4",
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="STEP,...", help="Kill the training after each of these steps, instead of random ones."
    ),
]
WorldsOption = Annotated[
    str | None,
    typer.Option(
        "--worlds",
        metavar="N,...",
        help="For an elastic job: train with N processes, and after each kill with the next number of processes.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Seed for choosing the random steps.")]
WithinOption = Annotated[str, typer.Option("--within", metavar="DURATION", help="Time limit for each training.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the runs, logs and traces when the check is done.")]


def verify_resume(
    job: SpecArgument,
    arguments: ScriptArguments = None,
    kills: KillsOption = None,
    at: AtOption = None,
    worlds: WorldsOption = None,
    seed: SeedOption = 0,
    within: WithinOption = "1h",
    keep: KeepOption = False,
    as_json: JsonOption = False,
) -> None:
    """
    Check that a resumed training ends bit for bit like an undisturbed one.

    Trains the script twice on this machine, once with kills, and compares the two trainings. If all steps are the same,
    but a metric, an object or a file differs, trains the script a third time, without kills. A difference does not
    count if the two trainings without kills differ there, too. Exits with 9 if any other difference remains, and
    with 1 if there was no resume to compare.

    Epochs, batches and steps count from 1, in JSON too.

    If the job is a command that keeps its state in files, the contents of the files are compared.
    """
    import os

    from msgspec.structs import replace

    from spotrun.report.folding import say
    from spotrun.runs.job_checks import check_script, require_framework
    from spotrun.runs.pinning import with_image_here
    from spotrun.spec.file import load_spec, placed
    from spotrun.verify import command_report as verified_command
    from spotrun.verify import report
    from spotrun.verify.command import CommandVerification
    from spotrun.verify.kills import require_worlds_fit
    from spotrun.verify.sandbox import Sandbox
    from spotrun.verify.verification import verify

    plan = _plan(kills, at, worlds, seed, within)
    spec = load_spec(job, arguments=arguments or ())
    require_worlds_fit(spec, plan)
    with placed(job):
        check_script(spec, here=True)
        spec = with_image_here(spec, os.environ)
    require_framework(spec)
    with report.view() as view, Sandbox(keep=keep) as sandbox:
        seen = verify(spec, plan, sandbox, view.show)
    if keep:
        seen = replace(seen, folder=str(sandbox.folder))
    if as_json:
        print_json(report.as_json(seen))
    else:
        say(verified_command.text(seen) if isinstance(seen, CommandVerification) else report.text(seen), indent=2)
    if not seen.identical and seen.differences.first is None:
        raise SpotrunError("no resume could be compared", hint="train longer or save more often, then verify again")
    if not seen.identical:
        raise NotIdentical("the two trainings are not the same", hint="fix the likely cause, then verify again")


def _plan(kills: int | None, at: str | None, worlds: str | None, seed: int, within: str) -> KillPlan:
    from spotrun.runs.flags import only_one, read_flag
    from spotrun.spec.values import read_positive_duration
    from spotrun.verify.kills import KillPlan

    only_one(kills=kills is not None, at=at is not None)
    only_one(kills=kills is not None, worlds=worlds is not None)
    limit = read_flag("--within", read_positive_duration, within, "--within 30m")
    sizes = _numbers("--worlds", worlds, "numbers of processes", "4,3,2,1,4")
    steps = _numbers("--at", at, "steps, counted from 1", "12,40")
    count = len(sizes) - 1 if sizes else kills or KILLS
    return KillPlan(kills=count, at=steps, seed=seed, within=limit, worlds=sizes)


def _numbers(flag: str, text: str | None, what: str, example: str) -> tuple[int, ...]:
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise SpecInvalid(f"{flag} {text!r} is not a list of {what}", hint=f"write it like {flag} {example}")
    return tuple(map(int, words))
