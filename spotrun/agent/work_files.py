"""Which files of the work folder the script has written: what is there now, beside what was there before it began."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spotrun.agent.node import Assignment
from spotrun.folder.stored_files import is_path_inside
from spotrun.folder.workdir import LEFT_OUT

NEVER = LEFT_OUT | {".cache", ".ipynb_checkpoints", ".spotrun"}
"""Caches, environments and version control: nobody fetches them, and they are large. Our own marks neither."""
OUTSIDE = "it is a link that leads out of the work folder"
UNNAMEABLE = "its name cannot be written down as text"


class Stamp(NamedTuple):
    """Differs for two states of a file between which something was written."""

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


class Survey(NamedTuple):
    """By path in the work folder: what can be stored, and why the rest cannot."""

    files: dict[str, Seen]
    refused: dict[str, str]


def _before(assignment: Assignment) -> Path:
    return assignment.folder / "files-before.json"


def remember(assignment: Assignment) -> None:
    """Write down what is there before the script begins, once in the life of an instance."""
    path = _before(assignment)
    if path.exists():
        return
    found = {name: list(Stamp.of(facts)) for name, facts in _files(assignment.work) if not isinstance(facts, str)}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found))
    temporary.replace(path)


def remembered(assignment: Assignment) -> Mapping[str, Stamp]:
    return {name: Stamp(*stamp) for name, stamp in json.loads(_before(assignment).read_text()).items()}


def survey(work: Path, before: Mapping[str, Stamp], chosen: Callable[[str], bool]) -> Survey:
    """The chosen files that were not there `before`, or not like this."""
    files: dict[str, Seen] = {}
    refused: dict[str, str] = {}
    root = os.path.realpath(work)
    for path, facts in _files(work):
        if not chosen(path):
            continue
        if not is_path_inside(path) or not _is_text(path):
            refused[os.fsencode(path).decode(errors="backslashreplace")] = UNNAMEABLE
        elif isinstance(facts, str):
            refused[path] = facts
        elif before.get(path) == (stamp := Stamp.of(facts)):
            continue
        elif stat.S_ISLNK(facts.st_mode):
            _take_link(root, path, files, refused)
        else:
            files[path] = Seen(path, stamp)
    return Survey(files, refused)


def _take_link(root: str, path: str, files: dict[str, Seen], refused: dict[str, str]) -> None:
    """A link to a file of the work folder counts as a copy of it. One to a folder, or to nothing, is passed over."""
    target = os.path.realpath(os.path.join(root, path))
    try:
        facts = os.stat(target, follow_symlinks=False)
    except OSError:
        return
    if os.path.commonpath((root, target)) != root:
        refused[path] = OUTSIDE
    elif stat.S_ISREG(facts.st_mode) and not NEVER & set(place := os.path.relpath(target, root).split("/")):
        files[path] = Seen("/".join(place), Stamp.of(facts))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _files(folder: Path | str, above: str = "") -> Iterator[tuple[str, os.stat_result | str]]:
    """Plain files and links with their facts, and folders that cannot be read with the reason. No link is followed."""
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
                yield from _files(entry.path, f"{above}{entry.name}/")
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                yield above + entry.name, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
