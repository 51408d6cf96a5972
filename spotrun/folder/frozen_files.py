"""
Files frozen at one point in time. For a training, they are the work folder between two steps, and the trainer passes
them to its agent. For a command, they are the command's state, and the agent copies them.

A file without a name (the "memory") holds the bytes of a training's small files, followed by the index that this module
defines. For a command, the memory holds all files of the state. A training's large files are passed as open
descriptors: an open file stays readable even if it is removed or replaced.
"""

from __future__ import annotations

import errno
import os
import tempfile
from enum import StrEnum
from typing import NamedTuple

from spotrun.folder.work_files import FileVersion, LinkTo, Stamp

SAMPLE_BYTES = 4096
COPY_BYTES, READ_BYTES = 1 << 30, 4 << 20
_NOT_HERE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of copy_file_range(2) which mean that it cannot copy between these two files, or on this file system."""


class ContentSource(StrEnum):
    """The place from which a file's bytes are read."""

    KNOWN = "known"
    """
    The agent already has the bytes: the file has not changed since the last step boundary that is known to be durable.
    """
    MEMORY = "memory"
    """In the memory, beginning at byte `at`."""
    OPEN = "open"
    """
    In the file, which is open as descriptor `at`. If the file has grown, its sample shows whether the bytes before the
    growth are unchanged.
    """
    COPY = "copy"
    """In a copy, which is open as descriptor `at`."""
    PLACE = "place"
    """In the file at `place`. It is not kept open, because too many files would be open."""


class FrozenFile(NamedTuple):
    """
    One file at a step boundary. Its bytes are at `place`. `place` differs from `path` if `path` is a link that cannot
    be stored as a link. `sample` contains the file's first and last bytes.
    """

    path: str
    place: str
    stamp: Stamp
    source: ContentSource
    at: int = 0
    sample: bytes = b""

    @property
    def version(self) -> FileVersion:
        return FileVersion(self.place, self.stamp)


class FrozenFolder(NamedTuple):
    """
    The work folder at a step boundary. `refused` has the reason for each path that cannot be stored. `gone` are the
    uploaded files that no longer exist.
    """

    files: tuple[FrozenFile, ...]
    refused: dict[str, str]
    gone: tuple[str, ...]
    links: dict[str, LinkTo]
    folders: dict[str, int]


def sample_at(size_bytes: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (start, size) of the first bytes and of the last bytes that together are a file's sample."""
    count = min(SAMPLE_BYTES, size_bytes)
    return (0, count), (size_bytes - count, count)


def unnamed(folder: str | os.PathLike[str]) -> int:
    """Return the descriptor of a new unnamed file on the file system of `folder`."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        return os.dup(file.fileno())


def copy_bytes(fd: int, to: int, start: int, size_bytes: int) -> int:
    """
    Copy the first `size_bytes` of a file into another file, to byte `start` of that file. The file system shares blocks
    if it can. Return the number of copied bytes, which is less than `size_bytes` if the file is shorter.
    """
    done = 0
    while done < size_bytes and (copied := _copy_some(fd, to, done, start + done, min(COPY_BYTES, size_bytes - done))):
        done += copied
    return done


def _copy_some(fd: int, to: int, at: int, start: int, size_bytes: int) -> int:
    try:
        return os.copy_file_range(fd, to, size_bytes, at, start)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    data = os.pread(fd, min(size_bytes, READ_BYTES), at)
    return os.pwrite(to, data, start) if data else 0
