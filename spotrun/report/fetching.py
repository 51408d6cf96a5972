"""Formats the output of `spotrun fetch`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spotrun.clock import ScaledClock
from spotrun.folder.fetched_names import unfetched
from spotrun.folder.stored_files import Fetched, Listing, Outcome, OutputFile
from spotrun.report.describe import size, timestamp
from spotrun.report.machine_readable import json_object
from spotrun.report.tables import plain
from spotrun.run.state import Outputs, RunState
from spotrun.spec.patterns import chooser
from spotrun.units import count_of

SHOWN_MAX = 50
NONE_STORED = "no files are stored"
"""
The message if no files are stored. Either the script has written no files, or `outputs` in the job names other files.
"""


class Bytes:
    """Counts the bytes that several threads have fetched, and reports how many of `total` are done."""

    def __init__(self, total: int, tell: Callable[[int, int], None]) -> None:
        self._total = total
        self._tell = tell
        self._done = 0
        self._lock = threading.Lock()

    def __call__(self, more: int) -> None:
        with self._lock:
            self._done += more
            self._tell(self._done, self._total)


def kept_back(files: Sequence[OutputFile]) -> list[Fetched]:
    """
    Return the files that `spotrun fetch` does not write to any folder because of their names: some programs would
    execute a file with such a name, or read their settings from it.
    """
    reasons = [(file, unfetched(file.path)) for file in files]
    return [
        Fetched(file, Outcome.REFUSED if reason.is_refused else Outcome.LEFT, reason)
        for file, reason in reasons
        if reason is not None
    ]


def show(outputs: Outputs, listing: Listing, chosen: Sequence[OutputFile], patterns: Sequence[str] = ()) -> None:
    """
    Print the stored files, and then the files that are not stored. If the user has given `patterns`, only files that
    match one of them are listed as not stored.
    """
    kept = kept_back(chosen)
    marked = {each.file.path for each in kept}
    for file in chosen:
        mark = "  (not fetched)" if file.path in marked else ""
        print(f"{size(file.size_bytes):>10}  {_modified(file):%m-%d %H:%M:%S}  {plain(file.path)}{mark}")
    if not chosen:
        print(NONE_STORED)
    for line in (*_not_fetched(kept), *_left_out(outputs, listing, patterns)):
        print(line)


def _modified(file: OutputFile) -> datetime:
    return datetime.fromtimestamp(file.modified_ns // 10**9, UTC)


def text(
    outputs: Outputs,
    listing: Listing,
    folder: Path,
    found: Sequence[Fetched],
    clock: ScaledClock,
    patterns: Sequence[str] = (),
) -> str:
    """
    Return the report of a fetch: a line for each fetched file, lines about files that were not fetched or not stored,
    and a sentence with the number of files that were fetched into `folder` or were already there. Only files that match
    `patterns` are listed as not stored.

    Times are in system time, not in run time, because the times of files are too.
    """
    fetched, same, changed = (
        [each.file for each in found if each.outcome is outcome]
        for outcome in (Outcome.FETCHED, Outcome.SAME, Outcome.CHANGED_HERE)
    )
    lines = [f"{size(file.size_bytes):>10}  {plain(file.path)}" for file in fetched[:SHOWN_MAX]]
    if len(fetched) > SHOWN_MAX:
        lines.append(f"{'':>10}  and {len(fetched) - SHOWN_MAX:,} more")
    lines += [
        f"{plain(each.file.path)} in the folder was longer; the longer file is kept next to it as {plain(each.kept_as)}"
        for each in found
        if each.kept_as
    ]
    lines += [
        f"{plain(file.path)} in the folder was changed, or not written by fetch, and is kept; add --force to replace it"
        for file in changed[:SHOWN_MAX]
    ]
    if len(changed) > SHOWN_MAX:
        lines.append(f"{len(changed) - SHOWN_MAX:,} more files are kept for the same reason")
    lines += _not_fetched([each for each in found if each.outcome in (Outcome.LEFT, Outcome.REFUSED)])
    where = plain(str(folder))
    here = f"; {count_of(len(same), 'file')} already there" if same else ""
    told = f"fetched {_amount(fetched)} into {where}{here}"
    if not found:
        told = NONE_STORED
    elif not fetched:
        told = f"nothing new: {_amount(same)} in {where} already"
    step = f"step {outputs.event.step:,}, " if outputs.event.step else ""
    as_of = f"as of {step}{timestamp(clock.on_the_wall(outputs.event.looked_at))} UTC"
    return "\n".join([*lines, f"{told} ({as_of})", *_left_out(outputs, listing, patterns)])


def _not_fetched(found: Sequence[Fetched]) -> list[str]:
    """
    Return a line for each file that was not fetched because of its name: some programs would execute a file with such a
    name, or read their settings from it.
    """
    lines = [f"not fetched: {plain(each.file.path)}: {each.problem}" for each in found[:SHOWN_MAX]]
    return [*lines, f"not fetched: {len(found) - SHOWN_MAX:,} more"] if len(found) > SHOWN_MAX else lines


def _amount(files: Sequence[OutputFile]) -> str:
    return f"{count_of(len(files), 'file')}, {size(sum(file.size_bytes for file in files))},"


def _left_out(outputs: Outputs, listing: Listing, patterns: Sequence[str]) -> list[str]:
    """
    Return a line for each of the first `SHOWN_MAX` files that the run did not store. If there are more such files, a
    last line says how many.

    If there are many such files, `listing` names only some of them, so their total is taken from the ledger. With
    `patterns`, only files in `listing` that match a pattern are shown and counted.
    """
    asked = chooser(patterns or ["**"])
    found = [left for left in listing.left_out if asked(left.path)]
    shown = [
        f"not stored: {plain(left.path)}{f', {size(left.size_bytes)}' if left.size_bytes else ''}: {plain(left.reason)}"
        for left in found[:SHOWN_MAX]
    ]
    more = (len(found) if patterns else outputs.event.left_out) - len(shown)
    return [*shown, f"not stored: {more:,} more"] if more > 0 else shown


def as_json(
    run_id: str,
    outputs: Outputs,
    listing: Listing,
    chosen: Sequence[OutputFile],
    clock: ScaledClock,
    folder: Path | None = None,
    found: Sequence[Fetched] = (),
) -> dict[str, Any]:
    """
    Return the stored files in the form that `--json` prints. A file in `found` also has `outcome`, `problem` and
    `kept_as`. Times are in system time, not in run time, because the times of files are too.
    """
    became = {
        each.file.path: {"outcome": each.outcome, "problem": each.problem or None, "kept_as": each.kept_as or None}
        for each in found
    }
    return json_object(
        run=run_id,
        folder=None if folder is None else str(folder),
        step=outputs.event.step,
        commit=outputs.event.commit,
        looked_at=clock.on_the_wall(outputs.event.looked_at),
        files=[
            {
                "path": file.path,
                "size_bytes": file.size_bytes,
                "modified_at": _modified(file),
                "attempt": file.attempt,
                **became.get(file.path, {}),
            }
            for file in chosen
        ],
        left_out=listing.left_out,
    )


def why_nothing(state: RunState, typed: str) -> str:
    """
    Return a hint for the user of a run that has stored no files: how to make this run, or the job's next run, store
    files.
    """
    if state.terminal is None:
        return f"try later: spotrun stores files a few minutes after they are written (see `spotrun logs {typed}`)"
    return "make the script write into its work folder, and name the files in `outputs` of the job"
