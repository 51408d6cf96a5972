"""
Files on this machine that record which runs are known, and how far the ledger of each of them went when it was last
read. Only this user can write in their folder, so the records show what another writer of the store has changed there.

    UID                   the sha256 of the run's entry 0, if the run is known (see known.py)
    newest-entries/UID    the sha256 of entry 0, the number of the newest entry that was read, the ledger's digest up to
                          this entry, and the address of the run's folder (not in files of earlier versions)
    launch-folders/UID    the folder from which the run was launched

These are three files because earlier versions of spotrun know only the first one, or the first two.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from spotrun.errors import SpotrunError
from spotrun.folder.ledger import NewestSeen, key_of
from spotrun.store.opening import open_store

KNOWN = "~/.spotrun/known"
"""Folder of known runs."""
KNOWN_VARIABLE = "SPOTRUN_KNOWN"
"""Environment variable that sets another path for this folder."""
NEWEST = "newest-entries"
LAUNCH_FOLDERS = "launch-folders"
"""Folders in the folder of known runs. No uid has a dash, so no file about a run has such a name."""


def known_folder() -> Path:
    return Path(os.environ.get(KNOWN_VARIABLE) or KNOWN).expanduser()


class _Recorded(NamedTuple):
    newest: NewestSeen
    uri: str


class KnownRecord:
    """
    The record of the run with this uid and this entry 0, for its folder with the address `uri`. Implements
    spotrun.folder.ledger.Witness. If the folder is a copy of the one that is recorded, neither reads nor changes what
    is recorded: the two ledgers may go on differently.
    """

    def __init__(self, run_uid: str, first_sha256: str, uri: str = "") -> None:
        self._first_sha256 = first_sha256
        self._uri = uri
        self.path = known_folder() / run_uid
        self._newest_path = known_folder() / NEWEST / run_uid
        self._launch_path = known_folder() / LAUNCH_FOLDERS / run_uid

    def is_known(self) -> bool:
        """Return True if this user created the run on this machine, or confirmed that it is theirs."""
        try:
            return self.path.read_text() == self._first_sha256
        except (OSError, UnicodeDecodeError):
            return False

    def is_of_another(self) -> bool:
        """Return True if this user has a run with this uid and another entry 0, so this run only poses as it."""
        try:
            return self.path.read_text() != self._first_sha256
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

    def record_launch(self, folder: Path) -> None:
        """Record the folder from which the user launches the run."""
        with contextlib.suppress(OSError):
            self._launch_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _replace(self._launch_path, str(folder))

    def launch_folder(self) -> str | None:
        """Return the folder from which the run was launched; None for a run of an earlier version."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self._launch_path.read_text()
        return None

    @cached_property
    def original(self) -> str | None:
        """
        The address of the folder that is recorded, if the run is still there and this folder is another one; None if
        this is the folder that is recorded, if the run was moved here, or if no folder is recorded.
        """
        recorded = self.recorded() if self.is_known() else None
        if recorded is None or recorded.uri in ("", self._uri) or _is_same_folder(recorded.uri, self._uri):
            return None
        try:
            first = open_store(recorded.uri).get(key_of(0))
        except SpotrunError:
            return None
        return recorded.uri if hashlib.sha256(first).hexdigest() == self._first_sha256 else None

    def newest(self) -> NewestSeen | None:
        """
        Return the newest entry that was recorded. Return None if the run is not known: what another writer of the store
        has put under this uid is not recorded, and says nothing about the run of this user.
        """
        recorded = self.recorded() if self.is_known() and self.original is None else None
        return None if recorded is None else recorded.newest

    def recorded(self) -> _Recorded | None:
        try:
            first_sha256, number, history_sha256, *uri = self._newest_path.read_text().rstrip("\n").split(" ", 3)
            if first_sha256 != self._first_sha256:
                return None
            return _Recorded(NewestSeen(int(number), history_sha256), "".join(uri))
        except (OSError, ValueError):
            return None

    def record(self, seen: NewestSeen) -> None:
        """Record an entry that was read or written, unless a higher one is recorded, or the run is not known."""
        if not self.is_known() or self.original is not None:
            return
        if (before := self.recorded()) is not None and before.newest.number >= seen.number:
            return
        with contextlib.suppress(OSError):
            self._newest_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _replace(self._newest_path, f"{self._first_sha256} {seen.number} {seen.history_sha256} {self._uri}\n")


def known_addresses() -> list[str]:
    """
    Return the addresses of the known runs, as far as they are recorded and can be read, the run that became known last
    first.
    """
    found = list[tuple[int, str]]()
    with contextlib.suppress(PermissionError):
        for path in known_folder().glob("*"):
            with contextlib.suppress(PermissionError, IsADirectoryError):
                recorded = KnownRecord(path.name, path.read_text()).recorded()
                if recorded is not None and recorded.uri:
                    found.append((path.stat().st_mtime_ns, recorded.uri))
    return [uri for _, uri in sorted(found, reverse=True)]


def _is_same_folder(one: str, other: str) -> bool:
    """Return True if both are paths of one folder, for example if one of them has a link."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


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
    for folder in ("", NEWEST, LAUNCH_FOLDERS):
        with contextlib.suppress(OSError):
            (known_folder() / folder / run_uid).unlink()
