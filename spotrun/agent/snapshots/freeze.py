"""
Freezes a command's state: copies all its files as they are at one moment, or copies nothing.

The files that have changed since the last checkpoint are copied, one after another, into one temporary file that has no
name in any folder. Copying is quick if the file system lets two files share blocks. Then all files of the state are
surveyed again. If any of them has changed in the meantime, the copy may mix an older and a newer state, and is dropped.

The files of a training that reports its steps are not copied here. The trainer itself freezes them between two steps
(spotrun/training/work_folder/freezing.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from spotrun.agent.snapshots.frozen import Descriptors, Frozen
from spotrun.checkpoint.safe_open import folder_at, open_for_reading
from spotrun.folder.frozen_files import ContentSource, FrozenFile, FrozenFolder, copy_bytes, unnamed
from spotrun.folder.work_files import FileVersion, LinkTo, Stamp, Survey

ALIGNMENT = 4096
"""Alignment, in bytes, of each file's copy. Two files can share only whole blocks of the file system."""


class NotAtRest(Exception):
    """A file was written to or removed during the copy."""


class Freezing(NamedTuple):
    """
    Copies a state. `look` surveys the state. The `known` files are in the store already, and so are not copied. The
    copy is made in `folder`.
    """

    work: Path
    folder: Path
    look: Callable[[], Survey]
    known: Mapping[str, FileVersion | LinkTo]

    def freeze(self, at_rest: Survey) -> Frozen:
        """
        Return a copy of the state, if the state has not changed since the survey `at_rest`.

        Raises:
            NotAtRest: the state has changed.
            OSError: a file cannot be copied.
        """
        copies = Descriptors([unnamed(self.folder)])
        try:
            files = self._copied(at_rest, copies[0])
            if (path := self.look().first_change(at_rest)) is not None:
                raise NotAtRest(f"{path} was changed during the copy")
        except BaseException:
            copies.close()
            raise
        return Frozen(FrozenFolder(files, at_rest.refused, (), at_rest.links, at_rest.folders), copies)

    def _copied(self, at_rest: Survey, to: int) -> tuple[FrozenFile, ...]:
        files, end = [], 0
        with folder_at(self.work) as root:
            for path, seen in sorted(at_rest.files.items()):
                if self.known.get(path) == seen:
                    files.append(FrozenFile(path, path, seen.stamp, ContentSource.KNOWN))
                    continue
                _copy(root, path, seen.stamp, to, end)
                files.append(FrozenFile(path, path, seen.stamp, ContentSource.MEMORY, end))
                end += -(-seen.stamp.size_bytes // ALIGNMENT) * ALIGNMENT
        return tuple(files)


def _copy(root: int, path: str, stamp: Stamp, to: int, start: int) -> None:
    try:
        fd = open_for_reading(root, path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAtRest(f"{path} is gone") from error
    try:
        if Stamp.of(os.fstat(fd)) != stamp:
            raise NotAtRest(f"{path} was changed during the copy")
        if copy_bytes(fd, to, start, stamp.size_bytes) < stamp.size_bytes:
            raise NotAtRest(f"{path} became shorter during the copy")
    finally:
        os.close(fd)
