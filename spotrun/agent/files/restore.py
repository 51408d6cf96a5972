"""
Restores a checkpoint's files into the work folder. Each file is verified. Afterwards the folder contains exactly
the files that the checkpoint includes.

Missing files are first fetched into a folder next to the work folder, and then renamed into their places. A command's
state is put in place before the command starts.

The files of a script are fetched while the trainer still imports its modules, and put in place when the trainer
requests them, just before its training begins. They are not put in place earlier, because the script may write the same
files before its training begins, and the restore has to replace what it wrote.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.files.commit_files import CommitFiles, StateVersions, StoredFile
from spotrun.agent.files.rules import StateFiles, TrainingFiles
from spotrun.checkpoint import fetching
from spotrun.checkpoint.outputs import read_listing
from spotrun.checkpoint.safe_open import folder_at, parent_of
from spotrun.errors import CheckpointDamaged, SpotrunError
from spotrun.folder import work_files, workdir
from spotrun.folder.frozen_files import copy_bytes
from spotrun.folder.stored_files import Listing, Outcome, OutputFile
from spotrun.folder.work_files import FileVersion, LinkTo
from spotrun.run.state import Commit

OWNERS = 0o700
"""
The permissions that an owner needs to add and remove files in a folder. During a restore, all folders of a command's
state have these permissions. Afterwards, each folder gets the permissions that the checkpoint names.
"""


class FilesOfCommit:
    """
    The files to restore: those that `commit` includes or, if `commit` is None, the work folder as the user uploaded it.

    `known` are files of the work folder that this agent has stored or restored before. If such a file is unchanged, its
    digests need not be computed again. `rules` select which files of the work folder belong to the checkpoint; the
    default is a script's files. `coming` names the folder, next to the work folder, into which files are fetched.
    `rank` is the rank of this member in a gang that runs a command.
    """

    def __init__(
        self,
        context: AgentContext,
        commit: Commit | None,
        known: Mapping[str, StoredFile],
        rules: TrainingFiles | StateFiles | None = None,
        coming: str = "files-coming",
        rank: int = 0,
    ) -> None:
        self._rank = rank
        self._context = context
        self._commit = commit
        self._known = known
        self._rules = rules or TrainingFiles(context)
        self._work = context.assignment.work
        self._coming = context.assignment.folder / coming
        self._listing = Listing(files=())
        self._writers: Mapping[str, int] = {}
        self._right: dict[str, FileVersion] = {}
        self._folders: Collection[str] = ()
        """
        Folders that were in the work folder when `fetch` was called. Only these are removed if the checkpoint lacks
        them; folders that the current trainer has made since then stay.
        """

    def fetch(self) -> None:
        """
        Fetch the missing files into a folder next to the work folder. Leave the work folder unchanged.

        Raises:
            CheckpointDamaged: files of the commit are missing from the store, or damaged.
            StoreError, SpotrunError: the commit cannot be read, or this disk cannot be written to.
        """
        there = self._rules.survey()
        found, self._folders = there.files, there.folders
        outputs = None if self._commit is None else self._commit.outputs
        if outputs is None:
            return
        self._listing, self._writers = read_listing(self._context.store, outputs).of_rank(self._rank)
        self._right = {file.path: found[file.path] for file in self._listing.files if self._is_here(file, found)}
        shutil.rmtree(self._coming, ignore_errors=True)
        self._bring([file for file in self._listing.files if file.path not in self._right])

    def written(self) -> list[str]:
        """Return the paths of the files that are new in the work folder, or have changed, since the script began."""
        return sorted(self._rules.survey().files)

    def of_others(self) -> StateVersions:
        """Return the restored files and links that other members of the gang have written."""
        paths = [path for path, rank in self._writers.items() if rank != self._rank]
        if not paths:
            return {}
        seen = self._rules.survey()
        found = {path: seen.at(path) for path in paths}
        return {path: version for path, version in found.items() if version is not None}

    def _is_here(self, file: OutputFile, found: Mapping[str, FileVersion]) -> bool:
        seen = found.get(file.path)
        if seen is None or seen.place != file.path or seen.stamp.size_bytes != file.size_bytes:
            return False
        known = self._known.get(file.path)
        if known is not None and known.version == seen and isinstance(known.entry, OutputFile):
            return _digests(known.entry) == _digests(file)
        return fetching.is_at(self._work, file)

    def _bring(self, files: list[OutputFile]) -> None:
        for each in fetching.bring(self._context.store, files, self._coming):
            if each.outcome is Outcome.FAILED:
                raise CheckpointDamaged(f"{self._rules.WHAT}: cannot fetch {each.file.path}: {each.problem}")

    def putter(self, files: CommitFiles) -> Callable[[Sequence[str], int], str]:
        """
        Return a function that puts the files into their places, and then calls `files.begin` with the list of all files
        in the work folder. It returns "", or the reason why a file could not be put in its place.
        """

        def put(opened: Sequence[str], attempt: int) -> str:
            try:
                files.begin(attempt, self.put(opened, attempt))
            except SpotrunError as error:
                return str(error)
            return ""

        return put

    # -- writing the files into place ----------------------------------------------------------------------------------

    def put(self, opened: Collection[str], attempt: int) -> dict[str, StoredFile]:
        """
        Put the files into their places, and return the files that the work folder now has.

        `opened` are the files that the trainer has open for writing. They are overwritten instead of replaced, so that
        the trainer's open file remains the one in the folder. They are kept even if the checkpoint does not include
        them.

        Raises:
            SpotrunError: a file cannot be put in its place, or cannot be fetched.
        """
        try:
            with folder_at(self._work) as root:
                self._put(root, set(opened))
        except OSError as error:
            raise SpotrunError(f"{error.filename or self._work}: {error.strerror}") from error
        finally:
            shutil.rmtree(self._coming, ignore_errors=True)
        listed = {file.path: replace(file, attempt=attempt) for file in self._listing.files}
        seen = self._rules.survey().files
        return {path: StoredFile(seen[path], file) for path, file in listed.items() if path in seen}

    def _put(self, root: int, opened: set[str]) -> None:
        listing, before = self._listing, self._rules.before
        links = {link.path: LinkTo(link.target, link.absolute) for link in listing.links}
        listed = {file.path for file in listing.files} | links.keys()
        now = self._rules.survey()
        there: dict[str, object] = {**now.files, **now.links}
        if self._rules.IS_WHOLE:
            there |= now.refused
            _set_modes(root, {path: mode | OWNERS for path, mode in now.folders.items()})
        new = [path for path in there if path not in before]
        other = [path for path in new if path not in listed or links.get(path) != now.links.get(path)]
        self._remove(root, other, opened)
        self._remove(root, [path for path in listing.removed if path in before], opened)
        self._remove_folders(root)
        changed = [path for path in (*there, *now.gone) if path in before]
        self._put_uploaded(root, [p for p in changed if p not in listed and p not in listing.removed], opened)
        wrong = [file for file in listing.files if now.files.get(file.path) != self._right.get(file.path, ...)]
        self._bring([file for file in wrong if not (self._coming / file.path).exists()])
        for file in wrong:
            _place(root, self._coming / file.path, file.path, in_place=file.path in opened)
        for folder in listing.folders:
            _make_folder(root, folder.path, OWNERS if self._rules.IS_WHOLE else folder.mode)
        for path, to in links.items():
            if now.links.get(path) != to:
                _link(root, path, to.text(os.path.realpath(self._work), path))
        if self._rules.IS_WHOLE:
            _set_modes(root, {file.path: file.mode for file in listing.files if file.mode is not None})
            _set_modes(root, {folder.path: folder.mode for folder in listing.folders})

    def _remove(self, root: int, paths: Iterable[str], opened: Collection[str]) -> None:
        """
        Remove the files at `paths`, which are in the work folder but not in the checkpoint. Keep some of them:
        - files that the running trainer has open for writing
        - files that could not be stored in the checkpoint (its list names them as left out). The copy in the work
          folder might be the only one, and it might still belong to the checkpoint.
        - a folder that belongs to a command's state and cannot be read
        """
        outputs, left_out = None if self._commit is None else self._commit.outputs, set()
        if not self._rules.IS_WHOLE:
            if outputs is not None and outputs.event.left_out > len(self._listing.left_out):
                self._context.note(
                    "files that are not in the checkpoint are left in the work folder: some files could not be "
                    "stored in the checkpoint, and its list does not name all of them"
                )
                return
            left_out = {left.path for left in self._listing.left_out}
        hide_in = self._context.console.redaction.hide_in
        for path in paths:
            if path not in opened and hide_in(path) not in left_out:
                with (
                    contextlib.suppress(FileNotFoundError, IsADirectoryError),
                    parent_of(root, path) as (parent, name),
                ):
                    os.unlink(name, dir_fd=parent)

    def _remove_folders(self, root: int) -> None:
        """Remove empty folders that the checkpoint lacks, except those that the current trainer made."""
        listing = self._listing
        kept = {folder.path for folder in listing.folders}
        for path in (*(file.path for file in listing.files), *(link.path for link in listing.links)):
            kept.update(path[:at] for at, letter in enumerate(path) if letter == "/")
        for path in sorted(set(self._folders) - kept, reverse=True):
            with contextlib.suppress(OSError), parent_of(root, path) as (parent, name):
                os.rmdir(name, dir_fd=parent)

    def _put_uploaded(self, root: int, paths: list[str], opened: Collection[str]) -> None:
        """
        Restore the files at `paths` from the user's upload. They are not in the checkpoint, because they were still as
        uploaded when it was made. They were changed or removed later.
        """
        if not paths:
            return
        workdir.fetch(self._context.store, self._context.created.workdir_sha256, self._coming / ".uploaded")
        for path in paths:
            source = self._coming / ".uploaded" / path
            if source.is_file():
                _place(root, source, path, in_place=path in opened)
            else:
                self._context.note(f"{path} has changed since the checkpoint; only `setup` can recreate it")


class RestoredState(NamedTuple):
    """
    The files of a command's state that the work folder now has, and the files and links among them that other members
    of the gang have written.
    """

    known: dict[str, StoredFile]
    of_others: StateVersions


def restore_state(
    context: AgentContext, commit: Commit, known: Mapping[str, StoredFile], attempt: int, rank: int = 0
) -> RestoredState:
    """
    Put a command's state into the work folder before the command starts. In a gang, `rank` is this member's rank.

    Raises:
        CheckpointDamaged: files of the commit are missing from the store, or damaged.
        StoreError, SpotrunError: the commit cannot be read, or this disk cannot be written to.
    """
    assert commit.outputs is not None
    files = FilesOfCommit(context, commit, known, StateFiles(context), rank=rank)
    files.fetch()
    return RestoredState(files.put((), attempt), files.of_others())


def tidy(context: AgentContext, attempt: int) -> None:
    """
    If the run has no checkpoint, restore the work folder as the user uploaded it, because an earlier trainer may have
    written into it.
    """
    if context.recorder.state.latest_commit() is None:
        as_uploaded(context, attempt)


def as_uploaded(context: AgentContext, attempt: int, stays: Callable[[str], bool] = lambda _: False) -> None:
    """
    If a trainer has run in the work folder, restore the folder as the user uploaded it. Leave the paths for which
    `stays` returns True as they are.
    """
    if not context.assignment.training_mark.exists():
        return
    files = FilesOfCommit(context, None, {}, TrainingFiles(context, stays))
    try:
        files.fetch()
        files.put((), attempt)
        _remove_emptied(context.assignment.work)
    except SpotrunError as error:
        context.note(f"the files of an earlier trainer could not be removed: {error}")


def _remove_emptied(work: Path) -> None:
    """
    Remove each logger's folder that contains nothing but spotrun's mark file. If such a folder remained, the logger
    would give its next folder a higher number.
    """
    for folder, inner, names in os.walk(work):
        inner[:] = [name for name in inner if name not in work_files.NEVER]
        if work_files.MARK in names and all(each == [work_files.MARK] for *_, each in os.walk(folder) if each):
            inner.clear()
            shutil.rmtree(folder, ignore_errors=True)


def _digests(file: OutputFile) -> list[str]:
    return [piece.blake3 for piece in file.pieces]


def _make_folder(root: int, path: str, mode: int) -> None:
    with contextlib.suppress(FileExistsError), parent_of(root, path, make=True) as (parent, name):
        os.mkdir(name, mode, dir_fd=parent)


def _set_modes(root: int, modes: Mapping[str, int]) -> None:
    """
    Set the modes of files or folders, the innermost first. A mode may forbid even the owner to enter a folder, so the
    modes of the folder's contents have to be set first.
    """
    for path in sorted(modes, reverse=True):
        with parent_of(root, path) as (parent, name):
            os.chmod(name, modes[path], dir_fd=parent)  # not a link: no process that could make one is running


def _link(root: int, path: str, text: str) -> None:
    """
    Make a link at `path`, in place of what was there. The caller makes links after it has placed all files, so that no
    file is written through a link. A process that has the earlier file at `path` open keeps it open.
    """
    with parent_of(root, path, make=True) as (parent, name):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=parent)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.rmdir(name, dir_fd=parent)
        os.symlink(text, name, dir_fd=parent)


def _place(root: int, source: Path, path: str, *, in_place: bool) -> None:
    with parent_of(root, path, make=True) as (parent, name):
        if not in_place:
            os.rename(source, name, dst_dir_fd=parent)
            return
        to = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            with source.open("rb") as file:
                facts = os.fstat(file.fileno())
                copy_bytes(file.fileno(), to, 0, facts.st_size)
            os.ftruncate(to, facts.st_size)  # last: a process that reads a mapped part beyond the end would be killed
            os.utime(to, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        finally:
            os.close(to)
