"""
Files on this machine that record which runs are known, and how far the ledger of each of them went when it was last
read. Only this user can write in their folder, so the records show what another writer of the store has changed there.

    UID                   the sha256 of the run's entry 0, if the run is known (see known.py)
    newest-entries/UID    the sha256 of entry 0, the number of the newest entry that was read, and the ledger's digest
                          up to this entry

These are two files because earlier versions of spotrun know only the first one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from spotrun.folder.ledger import NewestSeen

KNOWN = "~/.spotrun/known"
"""Folder of known runs."""
KNOWN_VARIABLE = "SPOTRUN_KNOWN"
"""Environment variable that sets another path for this folder."""
NEWEST = "newest-entries"
"""Folder in the folder of known runs. No uid has a dash, so no file about a run has this name."""


def known_folder() -> Path:
    return Path(os.environ.get(KNOWN_VARIABLE) or KNOWN).expanduser()


class KnownRecord:
    """The record of the run with this uid and this entry 0. Implements spotrun.folder.ledger.Witness."""

    def __init__(self, run_uid: str, first_sha256: str) -> None:
        self._first_sha256 = first_sha256
        self.path = known_folder() / run_uid
        self._newest_path = known_folder() / NEWEST / run_uid

    def is_known(self) -> bool:
        """Return True if this user created the run on this machine, or confirmed that it is theirs."""
        try:
            return self.path.read_text() == self._first_sha256
        except (OSError, UnicodeDecodeError):
            return False

    def remember(self) -> None:
        """
        Make the run known.

        Raises:
            OSError: the file cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.touch(mode=0o600)
        self.path.write_text(self._first_sha256)

    def newest(self) -> NewestSeen | None:
        """
        Return the newest entry that was recorded. Return None if the run is not known: what another writer of the store
        has put under this uid is not recorded, and says nothing about the run of this user.
        """
        return self._recorded() if self.is_known() else None

    def _recorded(self) -> NewestSeen | None:
        try:
            first_sha256, number, history_sha256 = self._newest_path.read_text().split()
            return NewestSeen(int(number), history_sha256) if first_sha256 == self._first_sha256 else None
        except (OSError, ValueError):
            return None

    def record(self, seen: NewestSeen) -> None:
        """Record an entry that was read or written, unless a higher one is recorded, or the run is not known."""
        if not self.is_known() or ((before := self._recorded()) is not None and before.number >= seen.number):
            return
        with contextlib.suppress(OSError):
            self._newest_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _replace(self._newest_path, f"{self._first_sha256} {seen.number} {seen.history_sha256}\n")


def _replace(path: Path, text: str) -> None:
    """Write a file in one step: a process that is killed meanwhile leaves the old text."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink()
        raise


def forget(run_uid: str) -> None:
    for path in (known_folder() / run_uid, known_folder() / NEWEST / run_uid):
        with contextlib.suppress(OSError):
            path.unlink()
