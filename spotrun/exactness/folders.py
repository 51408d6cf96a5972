"""Compares the work folders of two finished trainings, and finds the first difference in each file."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path

from spotrun.exactness.file_content import EVENTS, parts_of_events, parts_of_file
from spotrun.exactness.pickled import Parts
from spotrun.exactness.same_everywhere import Clean
from spotrun.exactness.varying import Varying

OF_TRACKERS = {"mlruns": "MLflow's", "wandb": "W&B's"}
"""
Folders of trackers that give each run a new name and record its time. Their files are not compared, because they always
differ.
"""
OF_DATABASES = ("-wal", "-shm", "-journal")
TIMED, OF_SOME_TIME = re.compile(r"(?<![^/])[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_[^/]+(?=/)"), "<time>"
"""Folders that TensorBoard's writers name after the time and the machine of their start: Nov25_09-59-23_host."""
ABSENT, THERE = "absent", "there"
TEXT_MAX = 160
"""Maximum characters of a text in a difference. For a longer text, the beginning and a digest are shown."""


@dataclass(frozen=True)
class FileDifference:
    """A difference in part `where` of the file `path`. `where` is "" if one file is absent or the file has no parts."""

    path: str
    where: str
    straight: str
    interrupted: str


@dataclass(frozen=True)
class Folder:
    """A work folder, and the relative paths of its files."""

    root: Path
    paths: frozenset[str]

    def has(self, name: str) -> bool:
        return bool(self.files_of(name))

    def files_of(self, name: str) -> list[Path]:
        """
        Return the files that are compared together under this name. Usually this is one file. The exception is
        TensorBoard: each process writes a new event file with a time in its name, so all event files of a folder are
        compared as if they were one file.
        """
        if not name.endswith(EVENTS):
            path = self.root / name
            return [path] if path.is_file() or path.is_symlink() else []
        folder = escape(name.removesuffix(EVENTS)).replace(OF_SOME_TIME, "*")
        found = (path for path in self.root.glob(f"{folder}{EVENTS}*") if path.is_file())
        return sorted(path for path in found if names_of([path.relative_to(self.root).as_posix()]) == {name})

    def parts_of(self, name: str, clean: Clean) -> Parts:
        files = self.files_of(name)
        if name.endswith(EVENTS):
            return parts_of_events(files, clean)
        return parts_of_link(files[0], clean) if files[0].is_symlink() else parts_of_file(files[0], clean)


def parts_of_link(path: Path, clean: Clean) -> Parts:
    """Yield a link's target. The content of the target is compared under the target's path."""
    yield "", clean(f"a link to {os.readlink(path)}")


def names_of(paths: Iterable[str]) -> set[str]:
    """
    Return the names under which the files at `paths` are compared. Auxiliary files of databases are left out. All
    TensorBoard event files in a folder share one name, in which `<time>` replaces any time in the folder's name.
    """
    names = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if not name.endswith(OF_DATABASES):
            names.add(TIMED.sub(OF_SOME_TIME, f"{folder}/{EVENTS}").lstrip("/") if name.startswith(EVENTS) else path)
    return names


def tracker_of(name: str) -> str | None:
    """Return the tracker (MLflow, W&B) that wrote the file `name`, or None. A tracker is recognized by its folder."""
    return next((OF_TRACKERS[part] for part in name.split("/") if part in OF_TRACKERS), None)


def first_difference(
    straight: Folder, interrupted: Folder, names: Collection[str], clean: Clean
) -> FileDifference | None:
    return next(differences(straight, interrupted, names, clean), None)


def differences(
    straight: Folder,
    interrupted: Folder,
    names: Collection[str],
    clean: Clean,
    varying: Mapping[str, Varying] | None = None,
) -> Iterator[FileDifference]:
    """Yield the first difference in each file. Parts that vary according to `varying` are not compared."""
    for name in sorted(names):
        here, there = straight.has(name), interrupted.has(name)
        if here != there:
            yield FileDifference(name, "", *(THERE if each else ABSENT for each in (here, there)))
        elif here:
            two = [each.parts_of(name, clean) for each in (straight, interrupted)]
            if varying is not None and name in varying:
                two = [varying[name].steady(each) for each in two]
            if (found := next(((one, other) for one, other in zip_longest(*two) if one != other), None)) is not None:
                one, other = found
                yield FileDifference(name, (one or other or ("", ""))[0], *_texts(one, other))


def _texts(one: tuple[str, str] | None, other: tuple[str, str] | None) -> tuple[str, str]:
    if one is not None and other is not None and one[0] != other[0]:
        return _short(": ".join(filter(None, one))), _short(": ".join(filter(None, other)))
    return _short(one[1]) if one else ABSENT, _short(other[1]) if other else ABSENT


def _short(text: str) -> str:
    if len(text) <= TEXT_MAX:
        return text
    return f"{text[: TEXT_MAX // 4]}… sha256 {sha256(text.encode(errors='surrogatepass')).hexdigest()}"
