"""
Makes the state of a command that of a checkpoint, before the command starts: its files, folders and links, no others.

Missing files are fetched into a folder next to the work folder, each piece verified, and only then renamed into place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from spotrun.agent.node import Node
from spotrun.agent.state_commit import Known
from spotrun.checkpoint import fetching
from spotrun.checkpoint.beneath import parent_of
from spotrun.checkpoint.outputs import read_listing
from spotrun.errors import CheckpointDamaged, SpotrunError
from spotrun.folder import state_files
from spotrun.folder.state_files import StateAt, StateSurvey
from spotrun.folder.stored_files import Listing, Outcome, OutputFile
from spotrun.folder.work_files import Seen
from spotrun.run.state import Commit
from spotrun.spec.patterns import chooser

OWNERS = 0o700
"""Permissions that a folder's owner needs to change it."""


def state_of(node: Node) -> StateAt:
    """Return the paths at which the job's command keeps its state."""
    train = node.spec.train
    return StateAt(train.state_paths, chooser(train.no_state))


class StateOfCommit:
    """The state of `commit`. `known` are files that lie here as they were stored."""

    def __init__(self, node: Node, commit: Commit, known: Mapping[str, Known]) -> None:
        assert commit.outputs is not None
        self._node = node
        self._outputs = commit.outputs
        self._known = known
        self._work = node.assignment.work
        self._beside = node.assignment.folder / "state-coming"

    def put(self, attempt: int) -> dict[str, Known]:
        """
        Put the state into the work folder. Return what is known of its files now.

        Raises:
            CheckpointDamaged: the store has not what was committed.
            StoreError, SpotrunError: it cannot be read, or this disk cannot be written to.
        """
        listing = read_listing(self._node.store, self._outputs)
        now = self._survey()
        wrong = [file for file in listing.files if not self._is_here(file, now)]
        shutil.rmtree(self._beside, ignore_errors=True)
        try:
            self._fetch(wrong)
            root = os.open(self._work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _Placing(root, listing, now).place(wrong, self._beside)
            finally:
                os.close(root)
        except OSError as error:
            raise SpotrunError(f"{error.filename or self._work}: {error.strerror}") from error
        finally:
            shutil.rmtree(self._beside, ignore_errors=True)
        there = self._survey().files
        listed = {file.path: replace(file, attempt=attempt) for file in listing.files}
        return {path: Known(Seen(path, there[path]), file) for path, file in listed.items() if path in there}

    def _survey(self) -> StateSurvey:
        return state_files.survey(self._work, state_of(self._node))

    def _is_here(self, file: OutputFile, now: StateSurvey) -> bool:
        stamp = now.files.get(file.path)
        if stamp is None or stamp.size_bytes != file.size_bytes:
            return False
        known = self._known.get(file.path)
        if known is not None and known.seen.stamp == stamp and isinstance(known.entry, OutputFile):
            return [piece.blake3 for piece in known.entry.pieces] == [piece.blake3 for piece in file.pieces]
        with contextlib.suppress(OSError):
            root = os.open(self._work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return fetching.holds(root, file)
            finally:
                os.close(root)
        return False

    def _fetch(self, files: list[OutputFile]) -> None:
        for each in fetching.bring(self._node.store, files, self._beside):
            if each.outcome is Outcome.FAILED:
                raise CheckpointDamaged(f"{each.file.path} of the command's state: {each.problem}")


class _Placing:
    """
    Puts files into their places. `now` is the state in the work folder, which is open as `root`. No link is followed.
    """

    def __init__(self, root: int, listing: Listing, now: StateSurvey) -> None:
        self._root = root
        self._listing = listing
        self._now = now

    def place(self, fetched: Iterable[OutputFile], beside: os.PathLike[str]) -> None:
        listing, now = self._listing, self._now
        files = {file.path: file for file in listing.files}
        links = {link.path: link.target for link in listing.links}
        folders = {folder.path: folder.mode for folder in listing.folders}
        for path in now.folders:
            self._change_mode(path, now.folders[path] | OWNERS)
        self._remove(path for path in (*now.files, *now.refused) if path not in files)
        self._remove(path for path in now.links if links.get(path) != now.links[path])
        for path in sorted((path for path in now.folders if path not in folders), reverse=True):
            with contextlib.suppress(OSError), parent_of(self._root, path) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        for path in sorted(folders):
            with contextlib.suppress(FileExistsError), parent_of(self._root, path, make=True) as (parent, name):
                os.mkdir(name, OWNERS, dir_fd=parent)
        for file in fetched:
            with parent_of(self._root, file.path, make=True) as (parent, name):
                os.rename(os.path.join(beside, file.path), name, dst_dir_fd=parent)
        for path, target in links.items():
            with contextlib.suppress(FileExistsError), parent_of(self._root, path, make=True) as (parent, name):
                os.symlink(target, name, dir_fd=parent)
        self._set_modes(files, folders)

    def _set_modes(self, files: Mapping[str, OutputFile], folders: Mapping[str, int]) -> None:
        """Set the modes. Those of folders come last, the innermost first: one may be closed to its own owner."""
        for path, file in files.items():
            if file.mode is not None:
                self._change_mode(path, file.mode)
        for path in sorted(folders, reverse=True):
            self._change_mode(path, folders[path])

    def _change_mode(self, path: str, mode: int) -> None:
        with parent_of(self._root, path) as (parent, name):
            os.chmod(name, mode, dir_fd=parent)  # no link is there, and nothing of the command runs that could make one

    def _remove(self, paths: Iterable[str]) -> None:
        """Remove files. A folder that could not be read is among them, and stays."""
        for path in paths:
            with (
                contextlib.suppress(FileNotFoundError, IsADirectoryError),
                parent_of(self._root, path) as (parent, name),
            ):
                os.unlink(name, dir_fd=parent)
