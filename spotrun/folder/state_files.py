"""
Lists the files that make up a command's state. The job names their paths.

All files in a folder are listed, whatever their names. A link is stored as a link if its target belongs to the state
too. Anything that cannot be stored, such as a pipe, is listed with the reason.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spotrun.folder.stored_files import STATE_FILES_MAX
from spotrun.folder.work_files import NOWHERE, OUTSIDE, Facts, FileVersion, LinkTo, Survey, sort_out, tree

TOO_MANY = f"there are more than {STATE_FILES_MAX:,} files"
NO_STATE = "it is a link to something that is not state"


def has_too_many(survey: Survey) -> bool:
    """Return True if the survey has more files, or more folders and links, than can be stored."""
    return len(survey.files) > STATE_FILES_MAX or len(survey.folders) + len(survey.links) > STATE_FILES_MAX


class StateAt(NamedTuple):
    """
    The paths of a command's state. Everything at or below one of `paths` belongs to the state, except each path for
    which `is_none(path)` is True.
    """

    paths: tuple[str, ...]
    is_none: Callable[[str], bool] = lambda _: False

    def covers(self, path: str) -> bool:
        """
        Return True if a path of the work folder belongs to the state. Judge only from the path: the file need not
        exist.
        """
        inside = any(path == each or path.startswith(f"{each}/") for each in self.paths)
        return inside and not self.is_none(path)


def survey(work: Path, state: StateAt) -> Survey:
    """
    List all files at the state's paths and below them. The survey is empty if none of the paths exists. If there are
    too many files to be stored, stop early.
    """
    root = os.path.realpath(work)

    def link_at(path: str, found: Survey) -> LinkTo | None:
        if (target := _end_of(root, path)) is None:
            found.refused[path] = OUTSIDE
        elif target in found.files or target in found.folders:
            return LinkTo(os.path.relpath(target, os.path.dirname(path) or "."))
        else:
            found.refused[path] = NO_STATE if os.path.exists(os.path.join(root, target)) else NOWHERE
        return None

    return sort_out(_found(root, state), link_at)


def _found(root: str, state: StateAt) -> Iterator[tuple[str, Facts]]:
    pending, files = list(state.paths), 0
    while pending:
        path = pending.pop()
        for each, facts in _tree(root, path):
            if state.is_none(each):
                continue
            yield each, facts
            mode = 0 if isinstance(facts, OSError) else facts.st_mode
            files += stat.S_ISREG(mode)
            if files > STATE_FILES_MAX:
                break
            if each == path and stat.S_ISLNK(mode) and (end := _end_of(root, path)) and end not in state.paths:
                pending.append(end)  # the job names a link as state: its target is state too


def _tree(root: str, path: str) -> Iterator[tuple[str, Facts]]:
    """Yield `path` and everything below it."""
    try:
        facts = os.stat(os.path.join(root, path), follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError as error:
        yield path, error
        return
    yield path, facts
    if stat.S_ISDIR(facts.st_mode):
        yield from tree(root, path)


def _end_of(root: str, path: str) -> str | None:
    """
    Return the path in the work folder at which a chain of links ends; None if it ends outside of the work folder.
    """
    target = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath((root, target)) != root or target == root:
        return None
    return os.path.relpath(target, root)


def by_inode(work: Path, files: Mapping[str, FileVersion]) -> dict[tuple[int, int], str]:
    """
    Return the paths of the files, keyed by device and inode. The device is needed because a folder of the state may be
    on another file system.
    """
    devices: dict[str, int] = {}
    found = {}
    for path, seen in files.items():
        folder = os.path.dirname(path)
        if folder not in devices:
            with contextlib.suppress(OSError):
                devices[folder] = os.stat(os.path.join(work, folder)).st_dev
        if folder in devices:
            found[devices[folder], seen.stamp.inode] = path
    return found
