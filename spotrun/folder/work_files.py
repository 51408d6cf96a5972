"""
Finds the files of the work folder that the script has written: what is there now, against what was there before it
began.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from spotrun.folder import paths
from spotrun.folder.paths import is_nameable, is_text, leads_inside

MARK = ".spotrun"
"""Name of a file in a logger's folder: it holds the uid of the run that began it."""
NEVER = paths.NEVER | {".cache", ".ipynb_checkpoints", MARK}
"""
Names that are never stored: caches, environments and version control, which are large and of no use to a user, and
spotrun's own marks.
"""
PATHS_MAX = 1 << 14
"""Maximum paths that are judged once and remembered, as the folder is read again and again."""
OUTSIDE = "it is a link that leads out of the work folder"
NOWHERE = "it is a link that leads to nothing, or to itself"
TO_FOLDER = "it is a link to a folder, and what is in a folder is stored at its own place only"
TO_NEVER = "it is a link to what is never stored"
NO_FILE = "it is neither a file nor a link"
UNNAMEABLE = "its name cannot be written down as text"


_is_nameable = lru_cache(PATHS_MAX)(is_nameable)


class Stamp(NamedTuple):
    """State of a file; it differs for two states between which the file was written to."""

    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int
    mode: int

    @classmethod
    def of(cls, facts: os.stat_result) -> Stamp:
        return cls(facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_mode)


class Seen(NamedTuple):
    """A file of the script. It lies at `place`, which is another path than its own if that is a link."""

    place: str
    stamp: Stamp


class LinkTo(NamedTuple):
    """
    Target of a link: `target` is relative to the link's own folder. `absolute`: the link names it by the work folder's
    path.
    """

    target: str
    absolute: bool = False

    def text(self, root: str, path: str) -> str:
        """Return the text of the link at `path` in the work folder `root`."""
        whole = os.path.join(root, os.path.dirname(path), self.target)
        return os.path.normpath(whole) if self.absolute else self.target


class Survey(NamedTuple):
    """
    One survey of a work folder, by path: what can be stored, and why the rest cannot. `links` can be kept as they are;
    what they lead to is judged in `files` and `refused` all the same, for users who want no links.
    """

    files: dict[str, Seen]
    refused: dict[str, str]
    gone: tuple[str, ...]
    """Files that were there before the script began, and are not there now."""
    links: dict[str, LinkTo]
    folders: dict[str, int]
    """Folders that were not there before the script began, empty ones too, with their permissions."""


def remember(work: Path, path: Path) -> None:
    """
    Record at `path` what is there before the script begins, once in the life of an instance. The name of a folder ends
    with a slash.
    """
    if path.exists():
        return
    found = {name: list(Stamp.of(facts)) for name, facts in _files(work) if not isinstance(facts, str)}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found))
    temporary.replace(path)


def remembered(path: Path) -> Mapping[str, Stamp]:
    return {name: Stamp(*stamp) for name, stamp in json.loads(path.read_text()).items()}


def survey(work: Path, before: Mapping[str, Stamp], chosen: Callable[[str], bool]) -> Survey:
    """Return the chosen files that were not there `before`, or have changed since."""
    files: dict[str, Seen] = {}
    refused: dict[str, str] = {}
    links: dict[str, LinkTo] = {}
    folders: dict[str, int] = {}
    missing = {path for path in before if path[-1:] != "/" and chosen(path)}
    root = os.path.realpath(work)
    for path, facts in _files(work):
        missing.discard(path)
        if path[-1:] == "/":
            if path not in before and not isinstance(facts, str) and _is_nameable(path[:-1]) and chosen(path[:-1]):
                folders[path[:-1]] = stat.S_IMODE(facts.st_mode)
            continue
        if not chosen(path):
            continue
        if not _is_nameable(path):
            refused[os.fsencode(path).decode(errors="backslashreplace")] = UNNAMEABLE
        elif isinstance(facts, str):
            refused[path] = facts
        elif before.get(path) == (stamp := Stamp.of(facts)):
            continue
        elif stat.S_ISLNK(facts.st_mode):
            _take_link(root, path, files, refused)
            if refused.get(path) in (None, NOWHERE, TO_FOLDER) and (link := _kept(root, path)) is not None:
                links[path] = link
        elif stat.S_ISREG(facts.st_mode):
            files[path] = Seen(path, stamp)
        else:
            refused[path] = NO_FILE
    gone = sorted(filter(_is_nameable, missing))
    return Survey(files, refused, tuple(gone), links, folders)


def _take_link(root: str, path: str, files: dict[str, Seen], refused: dict[str, str]) -> None:
    """Take a link to a file of the work folder as a copy of it."""
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
        files[path] = Seen("/".join(place), Stamp.of(facts))
    else:
        other = {stat.S_IFLNK: NOWHERE, stat.S_IFDIR: TO_FOLDER}
        refused[path] = other.get(stat.S_IFMT(facts.st_mode), NO_FILE)


def _kept(root: str, path: str) -> LinkTo | None:
    """Return the link as it can be kept; None if it could lead elsewhere on another instance, or is not text."""
    try:
        text = os.readlink(os.path.join(root, path))
    except OSError:
        return None
    absolute = text.startswith(root + os.sep)
    target = os.path.relpath(text, os.path.join(root, os.path.dirname(path))) if absolute else text
    return LinkTo(target, absolute) if is_text(target) and leads_inside(path, target) else None


def _files(folder: Path | str, above: str = "") -> Iterator[tuple[str, os.stat_result | str]]:
    """
    Yield all paths with their facts, and folders that cannot be read with the reason. A folder comes before what is in
    it, and its name ends with a slash. No link is followed.
    """
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except FileNotFoundError:
        return
    except OSError as error:
        yield above.rstrip("/") or ".", f"it cannot be read: {error.strerror}"
        return
    for entry in entries:
        if entry.name in NEVER:
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                yield f"{above}{entry.name}/", entry.stat(follow_symlinks=False)
                yield from _files(entry.path, f"{above}{entry.name}/")
            else:
                yield above + entry.name, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
