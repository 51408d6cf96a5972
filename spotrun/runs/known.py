"""
Remembers which runs are this user's: those that the user created on this machine, or confirmed to be theirs. Any other
run is continued only after the user has confirmed it.

Without the confirmation, another user with write access to the store could make a folder that looks like a run of this
user. Continuing that run would execute the folder's content: `notify.command` in this user's shell, and the job on this
machine (if the cloud is local) or on rented machines that this user pays for.

A run is recognised by the digest of its entry 0, which never changes. known_record.py keeps the digests in a folder
where only this user can write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from spotrun.errors import LedgerDamaged, RunCopied, SpecInvalid
from spotrun.runs.asking import confirm, say
from spotrun.runs.known_record import KnownRecord, forget
from spotrun.runs.open_run import OpenRun, writer
from spotrun.units import plain_usd

if TYPE_CHECKING:  # commands that create no run start faster without it
    from spotrun.runner.creation import NewRun


def create_known(new: NewRun, role: str = "runner") -> OpenRun:
    """
    Create a run of this user, and open it.

    The digest of entry 0 is remembered before entry 0 is written. So even if this command is killed right after writing
    entry 0, later commands recognise the run as the user's own. If another process has created a different run in its
    place, they do not accept that run, because its digest differs.

    Raises:
        LedgerDamaged: another process wrote entry 0.
        StoreUnavailable: it is unknown whether the run was created; repeat the call to find out.
    """
    record = KnownRecord(new.created.uid, new.first_sha256)
    _write(record, new.id)
    record.record_launch(Path.cwd())
    try:
        new.create()
        run = OpenRun(new.uri, writer(role))
        if run.first_sha256 != new.first_sha256:
            raise new.not_ours(run.created)
    except LedgerDamaged:
        forget(new.created.uid)
        raise
    return run


def remember(run: OpenRun) -> None:
    _write(run.known, run.id)


def _write(record: KnownRecord, run_id: str) -> None:
    """
    Write the file that makes the run known. If it cannot be written, print a note: later commands will ask whether the
    run is the user's.
    """
    try:
        record.remember()
    except OSError as error:
        say(f"note: cannot write {record.path} ({error.strerror}); other commands will ask whether {run_id} is yours")


def is_known(run: OpenRun) -> bool:
    """
    Return True if this user created the run on this machine, or confirmed that it is theirs. A copy of the run is not
    known as long as the run is still where it was.
    """
    return run.known.is_known() and run.known.original is None


def require_known(run: OpenRun, yes: bool) -> None:
    """
    Ask the user whether the run is their own, unless it is known (see `is_known`). If the answer is yes, remember the
    run as known, so that the next command does not ask.

    Raises:
        RunCopied: the run's folder is a copy of one that this machine has taken care of, and that is still there. With
            two ledgers, two runners would rent and end instances of one run.
        SpecInvalid: there is no terminal to ask on.
        typer.Exit: the answer was no.
    """
    if run.known.original is not None:
        there = quote(run.known.original)
        hint = f"`spotrun resume {there}` continues the run; to continue the copy instead, move or delete that folder"
        raise RunCopied(f"{run.uri} is a copy of {run.known.original}, where this machine takes care of it", hint=hint)
    if is_known(run):
        return
    executed = list(_executed(run))
    if not yes and not sys.stdin.isatty():
        raise SpecInvalid(
            f"{run.id} was not created by this user on this machine, and continuing it would {_listed(executed)}",
            hint=f"if it is yours, confirm once: spotrun resume {run.typed} --yes, or spotrun tick {run.typed} --yes",
        )
    if not yes:
        say(f"{run.id} was not created by this user on this machine. Continuing it would:")
        for line in executed:
            say(f"  {line}")
    confirm(yes, "Is it yours?", default=False, declined="nothing was done")
    remember(run)


def _executed(run: OpenRun) -> Iterator[str]:
    """
    Describe what spotrun would do with this user's rights if the run continued. The user reads this before confirming
    that the run is theirs.
    """
    if run.trains_here:
        train = run.spec.train
        yield f"run its {train.title} on this machine, with your rights"
    if not run.cloud.here:
        budget = run.created.budget_usd
        yield f"rent instances on {run.cloud.name}" + (f" for up to ${plain_usd(budget)}" if budget is not None else "")
    commands = [each.command for each in run.spec.notify if each.command is not None]
    for command in commands:
        yield f"run {command!r} in a shell on this machine, to send its notifications"


def _listed(lines: list[str]) -> str:
    return ", and ".join(lines)
