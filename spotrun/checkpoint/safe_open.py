"""Opens files below a folder, never through a link, even if another process creates links there at the same time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def parent_of(
    folder: int, path: str, *, make: bool = False, judge: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[int, str]]:
    """
    Yield a descriptor of the folder that contains the file `path`, and the file's name. `path` is relative to the
    folder behind the descriptor `folder`. With `make`, missing folders are created.

    `judge` is called with the descriptor of `folder` and of each folder of `path`, before anything is created in it.
    It can refuse the path by raising an error.

    Raises:
        OSError: a folder of `path` is missing (and `make` is False), is a link, or is not a folder.
    """
    *folders, name = path.split("/")
    at = os.dup(folder)
    try:
        judge(at)
        for each in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(each, dir_fd=at)
            inner = os.open(each, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
            judge(at)
        yield at, name
    finally:
        os.close(at)


@contextlib.contextmanager
def folder_at(path: str | os.PathLike[str]) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def open_for_reading(folder: int, path: str) -> int:
    """Return a descriptor of the file. Does not block, even if the file is a named pipe that nothing writes to."""
    with parent_of(folder, path) as (parent, name):
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)


def open_at(folder: str | os.PathLike[str], path: str) -> int:
    """Open the file like `open_for_reading`, with the folder given as a path."""
    with folder_at(folder) as root:
        return open_for_reading(root, path)
