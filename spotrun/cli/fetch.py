"""`spotrun fetch`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, RunArgument, StoreOption, print_json, progress_bar
from spotrun.errors import CheckpointDamaged, RunNotFound, SpecInvalid, SpotrunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotrun.folder.stored_files import Fetched, Listing, OutputFile
    from spotrun.run.state import Outputs, RunState
    from spotrun.runs.open_run import OpenRun

NAMED_MAX = 20
FAILURES_NAMED_MAX = 5
ELSEWHERE = (
    "change the file's name in the script; if the problem is the name of the folder to write to, use --to to name "
    "another folder"
)


PatternsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATTERN...]", help="Files to fetch, like best.ckpt or 'logs/*.csv'. Default: all."),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="FOLDER", help="Folder to write the files into.", show_default="a folder RUN-files"),
]
StepOption = Annotated[
    int | None,
    typer.Option("--step", metavar="N", help="Fetch the files of the checkpoint of this step, not the newest."),
]
ListedOption = Annotated[bool, typer.Option("--list", "-l", help="List the stored files, and fetch none.")]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Also replace files that were not written by fetch, or were changed later."),
]


def fetch(
    run: RunArgument,
    patterns: PatternsArgument = None,
    to: ToOption = None,
    step: StepOption = None,
    listed: ListedOption = False,
    force: ForceOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Fetch the files that the script has written, during the run and after it.

    Files that are already in the folder are not fetched again. If the job has `outputs`, only files that `outputs`
    names can be fetched. Times in the output are UTC.

    Files that a tool might run or read as its configuration are never fetched: hidden files, and files with a name that
    git, Python, or a test runner, build tool, linter or coding assistant uses. Nothing is written to hidden folders.
    """
    from msgspec.structs import replace

    from spotrun.checkpoint.fetching import RETRY_FOR_S
    from spotrun.checkpoint.fetching import fetch as fetch_files
    from spotrun.checkpoint.outputs import read_listing
    from spotrun.report import fetching as report
    from spotrun.runs.asking import say
    from spotrun.runs.fetch_record import FetchRecord
    from spotrun.runs.open_run import open_run
    from spotrun.spec.patterns import chooser

    opened = open_run(run, store)
    state, damage = opened.read_whole_part()
    outputs = _outputs_of(opened, state, step)
    listing = read_listing(opened.store, outputs, retry_for_s=RETRY_FOR_S)
    stored = chooser(opened.spec.outputs.files)  # a checkpoint may have more files
    listing = replace(listing, files=tuple(file for file in listing.with_copies if stored(file.path)))
    chosen = _chosen(opened.id, listing, patterns or [])
    if listed:
        if as_json:
            kept_back = report.kept_back(chosen)
            print_json(report.as_json(opened.id, outputs, listing, chosen, opened.clock, found=kept_back))
        else:
            report.show(outputs, listing, chosen, patterns or ())
        if damage is not None:
            raise damage
        return
    folder = _target(opened.id, to)
    record = FetchRecord(folder)
    with progress_bar(quiet=as_json, doing="fetching") as shown:
        told = report.Bytes(sum(file.size_bytes for file in chosen), shown)
        found = list(fetch_files(opened.store, chosen, folder, told, record, force=force))
    if record.problem:
        say(f"note: {record.path}: {record.problem}; the next fetch replaces these files only with --force")
    if as_json:
        print_json(report.as_json(opened.id, outputs, listing, chosen, opened.clock, folder, found))
    else:
        print(report.text(outputs, listing, folder, found, opened.clock, patterns or ()))
    _refuse_failures(found)
    if damage is not None:
        raise damage


def _outputs_of(run: OpenRun, state: RunState, step: int | None) -> Outputs:
    """
    Raises:
        RunNotFound: the run has no stored files, or none from this step.
    """
    from spotrun.report.fetching import why_nothing

    newest = state.newest_outputs()
    if newest is None:
        raise RunNotFound(f"{run.id} has no stored files", hint=why_nothing(state, run.typed))
    if step is None:
        return newest
    held = [each for each in state.commits if each.retired_at is None]
    found = {each.event.step: outputs for each in held if (outputs := state.outputs_of(each.number)) is not None}
    if step not in found:
        known = ", ".join(map(str, sorted(found))) or "none"
        raise RunNotFound(f"{run.id} has no files for step {step}", hint=f"it has files for these steps: {known}")
    return found[step]


def _chosen(run_id: str, listing: Listing, patterns: Sequence[str]) -> list[OutputFile]:
    """
    Raises:
        RunNotFound: a pattern does not match any file.
    """
    from spotrun.report.fetching import NONE_STORED
    from spotrun.report.tables import plain
    from spotrun.spec.patterns import chooser

    for pattern in patterns:
        fits = chooser([pattern])
        if not any(fits(file.path) for file in listing.files):
            for left in listing.left_out:
                if fits(left.path):
                    raise RunNotFound(
                        f"{run_id} has not stored {plain(left.path)}: {plain(left.reason)}",
                        hint="`outputs` in the job names the files to store",
                    )
            if not listing.files:
                raise RunNotFound(f"{run_id} has no file {plain(pattern)!r}: {NONE_STORED}")
            names = ", ".join(plain(file.path) for file in listing.files[:NAMED_MAX])
            more = f", and {len(listing.files) - NAMED_MAX:,} more (--list)" if len(listing.files) > NAMED_MAX else ""
            raise RunNotFound(f"{run_id} has no file {plain(pattern)!r}", hint=f"it has {names}{more}")
    fits = chooser(patterns or ["**"])
    return [file for file in listing.files if fits(file.path)]


def _target(run_id: str, to: str | None) -> Path:
    """
    Return the folder to write into.

    Refuse hidden folders, the folders of git and other tools, and everything inside them. All folders in the absolute
    path are checked, even those above the current folder. The user's home folder and the folders above it are refused
    only if they are git's.

    Raises:
        SpecInvalid: the folder is refused, or `to` is empty.
    """
    from spotrun.folder.fetched_names import Unfetched, unfetched_below
    from spotrun.folder.tool_folders import is_git_folder

    if to == "":
        raise SpecInvalid("--to is empty", hint="name a folder, such as --to results, or leave out --to")
    folder = Path(f"{run_id}-files" if to is None else to)
    resolved, home, current = (Path(os.path.realpath(each)) for each in (folder, Path.home(), "."))
    for place in (*reversed(resolved.parents), resolved):
        reason = None if home.is_relative_to(place) else unfetched_below(place.name)
        if is_git_folder(str(place)):
            reason = Unfetched.GIT
        if reason is None:
            continue
        hint = "name a separate folder for the files, such as --to results"
        if current.is_relative_to(place):
            hint = "the current folder is inside it; name a folder outside it by its full path, such as --to ~/results"
        raise SpecInvalid(
            f"refused to fetch into {folder}, because {reason.tools} may run or load files in {place}",
            hint=hint,
        )
    return folder


def _refuse_failures(found: Sequence[Fetched]) -> None:
    """
    Raises:
        CheckpointDamaged: a stored file is missing or damaged.
        SpotrunError: a file or folder on this machine is in the way; or fetching a file would be dangerous; or no file
            is of a kind that may be fetched.
    """
    from spotrun.folder.stored_files import Outcome

    failed = [each for each in found if each.outcome is Outcome.FAILED]
    if failed:
        message = _could_not(failed)
        if any(each.damaged for each in failed):
            raise CheckpointDamaged(
                message,
                hint="use --step to fetch an older checkpoint's files, or patterns to fetch only the intact files",
            )
        raise SpotrunError(
            message, hint="move away the file or folder that is in the way, or use --to to name another folder"
        )
    refused = [each for each in found if each.outcome is Outcome.REFUSED]
    if refused or (found and all(each.outcome is Outcome.LEFT for each in found)):
        raise SpotrunError(_could_not(refused or found), hint=ELSEWHERE)


def _could_not(failed: Sequence[Fetched]) -> str:
    from spotrun.report.tables import plain
    from spotrun.units import count_of

    named = "; ".join(f"{plain(each.file.path)}: {plain(each.problem)}" for each in failed[:FAILURES_NAMED_MAX])
    more = f"; and {len(failed) - FAILURES_NAMED_MAX:,} more" if len(failed) > FAILURES_NAMED_MAX else ""
    return f"{count_of(len(failed), 'file')} could not be fetched; {named}{more}"
