"""
Describes files as they were at one point in time, for an agent that stores them in a checkpoint. In a training, these
are the files in the work folder between two steps, and the trainer passes them to the agent. In a job that runs a
command, these are the files that make up the command's state, and the agent itself copies them.

The contents of small files are copied into one unnamed file, which this module calls the memory. It ends with an index,
whose format this module defines. A command's large files are copied into the memory too. A training's large files are
not copied: the trainer opens them and passes the file descriptors to the agent, because an open file stays readable
even after it is removed or replaced.
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
"""
Errors with which copy_file_range(2) reports that it cannot copy between the two given files, or on their file system.
"""


class ContentSource(StrEnum):
    """The source from which the agent reads a file's bytes."""

    KNOWN = "known"
    """Nowhere: the agent already has the bytes, because the file has not changed since the last stored checkpoint."""
    MEMORY = "memory"
    """The memory, from byte `at` on."""
    OPEN = "open"
    """
    The file itself, which is open as descriptor `at`. If the file has grown since the last checkpoint, its `sample`
    shows whether the earlier bytes are unchanged.
    """
    COPY = "copy"
    """A copy of the file, which is open as descriptor `at`."""
    PLACE = "place"
    """
    The file at the path `place`. It is not passed as a descriptor, because too many files would be open at the same
    time.
    """


class FrozenFile(NamedTuple):
    """
    The state of one file. The checkpoint stores the file under the path `path`, and its bytes are read from the path
    `place`. Normally both are the same. They differ if `path` is a link that cannot be stored as a link; then `place`
    is the link's target. `sample` contains the file's first and last bytes.
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
    The state of the work folder between two steps. `refused` maps each path that cannot be stored to the reason. `gone`
    are files that existed before the script began and no longer exist.
    """

    files: tuple[FrozenFile, ...]
    refused: dict[str, str]
    gone: tuple[str, ...]
    links: dict[str, LinkTo]
    folders: dict[str, int]


def sample_at(size_bytes: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the two parts of a file's sample, its first bytes and its last bytes, each as (start, size)."""
    count = min(SAMPLE_BYTES, size_bytes)
    return (0, count), (size_bytes - count, count)


def unnamed(folder: str | os.PathLike[str]) -> int:
    """Return the descriptor of a new unnamed file on the file system of `folder`."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        return os.dup(file.fileno())


def copy_bytes(fd: int, to: int, start: int, size_bytes: int) -> int:
    """
    Copy the first `size_bytes` of the file `fd` into the file `to`, starting at byte `start`. If the file system
    supports it, both files then share blocks on the disk. Return the number of copied bytes, which is less than
    `size_bytes` if the file is shorter.
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
