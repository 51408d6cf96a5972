"""
Files at one moment: the work folder at a boundary of a training, as the trainer hands it to its agent, and the state of
a command, as the agent copies it.

A memory holds the bytes of the small files, and after them this index. Large files of a training come along as open
descriptors: an open file outlives its removal, and a file that takes its name. All files of a state are in the memory,
which is a file without a name.
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
"""Errors of copy_file_range(2) between such files, or on such a file system."""


class ContentSource(StrEnum):
    """Place of a file's bytes."""

    KNOWN = "known"
    """The agent has them: the file is as it was at the last boundary that the agent has reported as durable."""
    MEMORY = "memory"
    """In the memory, from `at` on."""
    OPEN = "open"
    """In the file itself, which is descriptor `at`. If it has grown since, its sample is as it was."""
    COPY = "copy"
    """In a copy, which is descriptor `at`."""
    PLACE = "place"
    """In the file itself, which no process holds open: there are too many such files."""


class FrozenFile(NamedTuple):
    """
    A file at a boundary. It lies at `place`, which is another path than its own if that is a link that cannot be kept
    as one. `sample`: its first and last bytes.
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
    The work folder at a boundary. `refused` says why a path cannot be stored; `gone` are uploaded files that are not
    there any more.
    """

    files: tuple[FrozenFile, ...]
    refused: dict[str, str]
    gone: tuple[str, ...]
    links: dict[str, LinkTo]
    folders: dict[str, int]


def sample_at(size_bytes: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (start, size) of the first and of the last bytes of a file that a sample has."""
    count = min(SAMPLE_BYTES, size_bytes)
    return (0, count), (size_bytes - count, count)


def unnamed(folder: str | os.PathLike[str]) -> int:
    """Return a new file without a name in the file system of `folder`."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        return os.dup(file.fileno())


def copy_bytes(fd: int, to: int, start: int, size_bytes: int) -> int:
    """
    Copy the first bytes of a file into another one, from `start` on. The file system shares blocks if it can. Return
    the number of bytes; it is less if the file is shorter.
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
