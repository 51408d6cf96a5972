"""
Surveys the work folder: lists the script's files that exist now, and says why some of them cannot be stored.

A file in the folder is one of the script's files if it was created or changed after the script began. For the files of
a command's state, see state_files.py.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from spotrun.folder import paths
from spotrun.folder.paths import is_nameable, is_text, leads_inside
from spotrun.store.atomic_write import write_atomically

MARK = ".spotrun"
"""Name of a file in a logger's folder. The file contains the uid of the run that made the folder."""
NEVER = paths.NEVER | {".cache", ".ipynb_checkpoints", MARK}
"""
Names of files and folders that are never stored: caches, environments and version control, which are large and useless
to the training, and the MARK files that spotrun itself writes.
"""
PATHS_MAX = 1 << 14
"""
Maximum number of paths for which this module remembers whether they are to be stored. The folder is scanned again and
again, so this saves work.
"""
OUTSIDE = "it is a link that leads out of the work folder"
NOWHERE = "it is a link that leads to nothing, or to itself"
TO_FOLDER = "it is a link to a folder, and files are stored only under their real paths"
TO_NEVER = "it is a link to something that is never stored"
NO_FILE = "it is neither a file nor a link"
UNNAMEABLE = "its name cannot be written down as text"
Facts: TypeAlias = os.stat_result | OSError
"""The result of stat(2) for a path, or the reason why a folder cannot be read."""


_is_nameable = lru_cache(PATHS_MAX)(is_nameable)


class Stamp(NamedTuple):
    """
    The identity and version of a file. Two stamps of a path differ if the file was written to or replaced between them.
    """

    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int
    mode: int

    @classmethod
    def of(cls, facts: os.stat_result) -> Stamp:
        return cls(facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_mode)


class FileVersion(NamedTuple):
    """
    One version of a file. Its bytes are in the file at `place`. If the version was found through a link, `place` is the
    link's target.
    """

    place: str
    stamp: Stamp


class LinkTo(NamedTuple):
    """
    A link's target, relative to the link's folder. `absolute` is True if the link was made with an absolute path (into
    the work folder).
    """

    target: str
    absolute: bool = False

    def text(self, root: str, path: str) -> str:
        whole = os.path.join(root, os.path.dirname(path), self.target)
        return os.path.normpath(whole) if self.absolute else self.target


class Survey(NamedTuple):
    """
    The results of a survey, keyed by path. `files` contains the version of each file, and `links` contains each link
    that can be stored as a link. `folders` contains the permissions of each folder, even of empty ones. `refused`
    contains the reason why each other path cannot be stored.
    """

    files: dict[str, FileVersion]
    links: dict[str, LinkTo]
    folders: dict[str, int]
    refused: dict[str, str]
    gone: tuple[str, ...] = ()
    """Files that existed before the script began and do not exist now."""

    def at(self, path: str) -> FileVersion | LinkTo | None:
        """Return the file or link at `path`; None if there is neither."""
        return self.files.get(path) or self.links.get(path)

    def first_change(self, other: Survey) -> str | None:
        """Return a path at which the two surveys differ; None if there is none."""
        pairs: tuple[tuple[Mapping[str, object], Mapping[str, object]], ...] = (
            (self.files, other.files),
            (self.links, other.links),
            (self.folders, other.folders),
        )
        for mine, others in pairs:
            if mine != others:
                return min(path for path in {*mine, *others} if mine.get(path) != others.get(path))
        return None


def tree(root: str, folder: str = "", never: Collection[str] = ()) -> Iterator[tuple[str, Facts]]:
    """
    Yield all paths below a folder of `root`, each folder before its content. Links are not followed. Names in `never`
    are left out, with everything below them.
    """
    try:
        with os.scandir(os.path.join(root, folder)) as found:
            entries = list(found)
    except FileNotFoundError:
        return
    except OSError as error:
        yield folder or ".", error
        return
    for entry in entries:
        if entry.name in never:
            continue
        path = f"{folder}/{entry.name}" if folder else entry.name
        try:
            facts = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield path, facts
        if stat.S_ISDIR(facts.st_mode):
            yield from tree(root, path, never)


def sort_out(found: Iterable[tuple[str, Facts]], link_at: Callable[[str, Survey], LinkTo | None]) -> Survey:
    """
    Return a survey of the paths in `found`. `link_at` returns the link to store for a path, or None if the link cannot
    be stored as a link. It is called when all paths other than links are in the survey.
    """
    survey = Survey({}, {}, {}, {})
    for path, facts in found:
        if not _is_nameable(path):
            survey.refused[os.fsencode(path).decode(errors="backslashreplace")] = UNNAMEABLE
        elif isinstance(facts, OSError):
            survey.refused[path] = f"it cannot be read: {facts.strerror}"
        elif stat.S_ISREG(facts.st_mode):
            survey.files[path] = FileVersion(path, Stamp.of(facts))
        elif stat.S_ISDIR(facts.st_mode):
            survey.folders[path] = stat.S_IMODE(facts.st_mode)
        elif stat.S_ISLNK(facts.st_mode):
            survey.links[path] = LinkTo("")
        else:
            survey.refused[path] = NO_FILE
    links = ((path, link_at(path, survey)) for path in survey.links)
    return survey._replace(links={path: link for path, link in links if link is not None})


def remember(work: Path, path: Path) -> None:
    """
    Write to the file `path` a list of the files and folders that the work folder contains before the script begins.
    This is done only once on each instance. In the list, the name of a folder ends with a slash.
    """
    if path.exists():
        return
    there = tree(str(work), never=NEVER)
    found = {_name(each, facts): list(Stamp.of(facts)) for each, facts in there if not isinstance(facts, OSError)}
    write_atomically(path, json.dumps(found).encode())


def remembered(path: Path) -> Mapping[str, Stamp]:
    return {name: Stamp(*stamp) for name, stamp in json.loads(path.read_text()).items()}


def _name(path: str, facts: Facts) -> str:
    return path if isinstance(facts, OSError) or not stat.S_ISDIR(facts.st_mode) else f"{path}/"


def survey(work: Path, before: Mapping[str, Stamp], chosen: Callable[[str], bool]) -> Survey:
    """
    Survey what the script has created or changed. The survey contains the new folders, and the files that `chosen`
    accepts and that are new or changed compared with `before`, the state before the script began.

    A link that can be stored as a link is added to `links`. In addition, the file to which it leads is added to `files`
    under the link's path, because users who fetch files want copies instead of links. If that file cannot be stored,
    the reason is added to `refused`.
    """
    root = os.path.realpath(work)
    missing = {path for path in before if path[-1:] != "/" and chosen(path)}

    def link_at(path: str, found: Survey) -> LinkTo | None:
        _take_copy(root, path, found.files, found.refused)
        return _kept(root, path) if found.refused.get(path) in (None, NOWHERE, TO_FOLDER) else None

    found = sort_out(_new(root, before, chosen, missing), link_at)
    return found._replace(gone=tuple(sorted(filter(_is_nameable, missing))))


def _new(
    root: str, before: Mapping[str, Stamp], chosen: Callable[[str], bool], missing: set[str]
) -> Iterator[tuple[str, Facts]]:
    """
    Yield each path that `chosen` accepts and that is new or changed: it is not in `before`, or its file differs from
    the stamp there. Each path that exists is removed from `missing`.
    """
    for path, facts in tree(root, never=NEVER):
        name = _name(path, facts)
        missing.discard(name)
        if name != path:
            is_new = name not in before and _is_nameable(path)
        else:
            is_new = not _is_nameable(path) or isinstance(facts, OSError) or before.get(path) != Stamp.of(facts)
        if is_new and chosen(path):
            yield path, facts


def _take_copy(root: str, path: str, files: dict[str, FileVersion], refused: dict[str, str]) -> None:
    """
    Add the file to which the link at `path` leads to `files`, under the link's path. If that file is not in the work
    folder or cannot be stored, add the reason to `refused` instead.
    """
    target = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath((root, target)) != root:
        refused[path] = OUTSIDE
        return
    try:
        facts = os.stat(target, follow_symlinks=False)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        refused[path] = NOWHERE if missing else f"it cannot be read: {error.strerror}"
        return
    place = os.path.relpath(target, root).split("/")
    if NEVER & set(place):
        refused[path] = TO_NEVER
    elif stat.S_ISREG(facts.st_mode) and not is_text(target):
        refused[path] = UNNAMEABLE
    elif stat.S_ISREG(facts.st_mode):
        files[path] = FileVersion("/".join(place), Stamp.of(facts))
    else:
        other = {stat.S_IFLNK: NOWHERE, stat.S_IFDIR: TO_FOLDER}
        refused[path] = other.get(stat.S_IFMT(facts.st_mode), NO_FILE)


def _kept(root: str, path: str) -> LinkTo | None:
    """
    Return the link at `path` in the form in which it is stored. Return None if the link might lead to something else on
    another instance, or if its target is not valid text.
    """
    try:
        text = os.readlink(os.path.join(root, path))
    except OSError:
        return None
    absolute = text.startswith(root + os.sep)
    target = os.path.relpath(text, os.path.join(root, os.path.dirname(path))) if absolute else text
    return LinkTo(target, absolute) if is_text(target) and leads_inside(path, target) else None
