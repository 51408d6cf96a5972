"""
Copies a command's state at rest: all of it, or nothing.

What has changed since the last checkpoint is copied into one file without a name, if the file system shares blocks
without a wait. Then everything is surveyed again: if anything differs, the copy may hold two moments, and is dropped.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from spotrun.agent.files.frozen import Descriptors, Whole
from spotrun.checkpoint.beneath import open_for_reading
from spotrun.folder.state_files import StateSurvey
from spotrun.folder.work_files import Seen, Stamp

ALIGNMENT = 4096
"""Bytes to which copies are aligned: a file system shares whole blocks."""
COPY_BYTES = 1 << 30
_NOT_HERE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of copy_file_range(2) between such files, or on such a file system."""


class NotAtRest(Exception):
    """A file was written to meanwhile; or `OSError`, it cannot be copied."""


class FrozenState:
    """
    A state as it was at one moment. It holds a file until it is closed; `changed` says where in it each changed file
    begins.
    """

    def __init__(self, survey: StateSurvey, copies: Descriptors, changed: Mapping[str, int]) -> None:
        self.survey = survey
        self.changed = changed
        self._copies = copies

    def whole(self, path: str) -> Whole:
        """Return the bytes of a file that has `changed`."""
        return Whole(self._copies[0], self.changed[path], self.survey.files[path].size_bytes)

    @property
    def changed_bytes(self) -> int:
        return sum(self.survey.files[path].size_bytes for path in self.changed)

    def close(self) -> None:
        self._copies.close()


class Freezing(NamedTuple):
    """Copies a state: `look` surveys it, and what is `known` is stored already. Copies go below `folder`."""

    work: Path
    folder: Path
    look: Callable[[], StateSurvey]
    known: Mapping[str, Seen]

    def freeze(self, at_rest: StateSurvey) -> FrozenState:
        """
        Return the state, if it is still as it was when it was `at_rest`.

        Raises:
            NotAtRest, OSError
        """
        changed = [path for path, stamp in at_rest.files.items() if self.known.get(path) != Seen(path, stamp)]
        copies = Descriptors([_unnamed(self.folder)])
        try:
            places = self._copied(changed, at_rest, copies[0])
            if (path := self.look().first_change(at_rest)) is not None:
                raise NotAtRest(f"{path} was written to meanwhile")
        except BaseException:
            copies.close()
            raise
        return FrozenState(at_rest, copies, places)

    def _copied(self, paths: list[str], at_rest: StateSurvey, to: int) -> dict[str, int]:
        places, end = {}, 0
        root = os.open(self.work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for path in sorted(paths):
                places[path] = end
                end += _aligned(_copy(root, path, at_rest.files[path], to, end))
        finally:
            os.close(root)
        return places


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _unnamed(folder: Path) -> int:
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        return os.dup(file.fileno())


def _copy(root: int, path: str, stamp: Stamp, to: int, start: int) -> int:
    """Copy a file, and return its size."""
    try:
        fd = open_for_reading(root, path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAtRest(f"{path} is gone") from error
    try:
        if Stamp.of(os.fstat(fd)) != stamp:
            raise NotAtRest(f"{path} was written to meanwhile")
        done = 0
        while done < stamp.size_bytes:
            copied = _copy_some(fd, to, done, start + done, min(COPY_BYTES, stamp.size_bytes - done))
            if not copied:
                raise NotAtRest(f"{path} is shorter now")
            done += copied
    finally:
        os.close(fd)
    return stamp.size_bytes


def _copy_some(fd: int, to: int, at: int, start: int, size_bytes: int) -> int:
    try:
        return os.copy_file_range(fd, to, size_bytes, at, start)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    data = os.pread(fd, min(size_bytes, ALIGNMENT << 10), at)
    done = 0
    while done < len(data):
        done += os.pwrite(to, data[done:], start + done)
    return len(data)
