"""
The state of a command: what lies at its paths in the work folder, as one survey sees it.

A folder is surveyed with all that is in it, and no name is left out. A link stays a link as long as it leads to what is
state too. What cannot be stored, like a pipe, is named with the reason.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spotrun.folder.paths import is_nameable
from spotrun.folder.stored_files import STATE_FILES_MAX
from spotrun.folder.work_files import NO_FILE, NOWHERE, OUTSIDE, UNNAMEABLE, Stamp

TOO_MANY = f"there are more than {STATE_FILES_MAX:,} files"
NO_STATE = "it is a link to what is not state"


class StateSurvey(NamedTuple):
    """
    One survey of the state, by path in the work folder. `links` have their targets, relative to their own folders, and
    `folders` their permissions. `refused` says why the rest cannot be stored.
    """

    files: Mapping[str, Stamp]
    links: Mapping[str, str]
    folders: Mapping[str, int]
    refused: Mapping[str, str]

    @property
    def has_too_many(self) -> bool:
        return len(self.files) > STATE_FILES_MAX or len(self.folders) + len(self.links) > STATE_FILES_MAX

    def at(self, path: str) -> Stamp | str | None:
        """Return the file or the target of the link at `path`; None without either."""
        return self.files.get(path) or self.links.get(path)

    def first_change(self, other: StateSurvey) -> str | None:
        """Return a path of what can be stored that is not as it is in `other`; None if all of it is."""
        return next(
            (path for mine, others in zip(self[:3], other[:3], strict=True) for path in _unlike(mine, others)), None
        )


def _unlike(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return [] if one == other else sorted(path for path in {*one, *other} if one.get(path) != other.get(path))


class StateAt(NamedTuple):
    """The paths of a command's state, and a test for what at them is not state after all."""

    paths: tuple[str, ...]
    is_none: Callable[[str], bool] = lambda _: False

    def covers(self, path: str) -> bool:
        """Return whether a path of the work folder is state by its name."""
        inside = any(path == each or path.startswith(f"{each}/") for each in self.paths)
        return inside and not self.is_none(path)


def survey(work: Path, state: StateAt) -> StateSurvey:
    """
    Return what is at the state's paths now; nothing if none of them exists. It ends soon after there are too many
    files.
    """
    return _Surveying(os.path.realpath(work), state).all_of()


class _Surveying:
    def __init__(self, root: str, state: StateAt) -> None:
        self._root = root
        self._state = state
        self._files: dict[str, Stamp] = {}
        self._folders: dict[str, int] = {}
        self._links: dict[str, str] = {}
        self._refused: dict[str, str] = {}

    def all_of(self) -> StateSurvey:
        paths = self._state.paths
        pending = list(paths)
        while pending:
            path = pending.pop()
            for found, facts in self._tree(path):
                if not self._state.is_none(found):
                    self._take(found, facts)
            if path in self._links and (target := self._lies_at(path)) is not None and target not in paths:
                pending.append(target)  # the job names a link, and means what it leads to
        links = {path: target for path in self._links if (target := self._target(path)) is not None}
        return StateSurvey(self._files, links, self._folders, self._refused)

    def _tree(self, path: str) -> Iterator[tuple[str, os.stat_result | OSError]]:
        """Yield the path, and all below it. No link is followed."""
        try:
            facts = os.stat(os.path.join(self._root, path), follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            yield path, error
            return
        yield path, facts
        if stat.S_ISDIR(facts.st_mode):
            yield from self._below(path)

    def _below(self, folder: str) -> Iterator[tuple[str, os.stat_result | OSError]]:
        try:
            with os.scandir(os.path.join(self._root, folder)) as found:
                entries = list(found)
        except FileNotFoundError:
            return
        except OSError as error:
            yield folder, error
            return
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if len(self._files) > STATE_FILES_MAX:
                return
            try:
                facts = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield path, facts
            if stat.S_ISDIR(facts.st_mode):
                yield from self._below(path)

    def _take(self, path: str, facts: os.stat_result | OSError) -> None:
        if isinstance(facts, OSError):
            self._refused[path] = f"it cannot be read: {facts.strerror}"
        elif not is_nameable(path):
            self._refused[os.fsencode(path).decode(errors="backslashreplace")] = UNNAMEABLE
        elif stat.S_ISDIR(facts.st_mode):
            self._folders[path] = stat.S_IMODE(facts.st_mode)
        elif stat.S_ISREG(facts.st_mode):
            self._files[path] = Stamp.of(facts)
        elif stat.S_ISLNK(facts.st_mode):
            self._links[path] = ""
        else:
            self._refused[path] = NO_FILE

    def _target(self, path: str) -> str | None:
        """
        Return the target of a link, from its own folder; None, with the reason noted, if it leads to nothing that is
        state.
        """
        target = self._lies_at(path)
        if target is None:
            return None
        if target not in self._files and target not in self._folders:
            there = os.path.exists(os.path.join(self._root, target))
            self._refused[path] = NO_STATE if there else NOWHERE
            return None
        return os.path.relpath(target, os.path.dirname(path) or ".")

    def _lies_at(self, path: str) -> str | None:
        """Return the path in the work folder that a link leads to at last."""
        target = os.path.realpath(os.path.join(self._root, path))
        if os.path.commonpath((self._root, target)) != self._root or target == self._root:
            self._refused[path] = OUTSIDE
            return None
        return os.path.relpath(target, self._root)


def by_inode(work: Path, files: Mapping[str, Stamp]) -> dict[tuple[int, int], str]:
    """Return the files' paths by device and inode. A folder of the state may be a file system of its own."""
    devices: dict[str, int] = {}
    found = {}
    for path, stamp in files.items():
        folder = os.path.dirname(path)
        if folder not in devices:
            with contextlib.suppress(OSError):
                devices[folder] = os.stat(os.path.join(work, folder)).st_dev
        if folder in devices:
            found[devices[folder], stamp.inode] = path
    return found
