"""Flushes the files of the work folder that this process has open for writing, and restores their positions."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

KINDS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO)
"""
Classes of file objects, in the order in which they are flushed. A file object may contain another one, and the outer
one must be flushed first.
"""
DELETED = " (deleted)"


class Opened(NamedTuple):
    """
    A file in the work folder that is open for writing, with its descriptor. `updates` is true if the file is also open
    for reading. The process may then change bytes in the middle of the file, or write through a memory mapping.
    """

    path: str
    fd: int
    updates: bool


class OpenFiles:
    """
    Finds the Python file object for each open descriptor. A search through all objects of the process is slow, so the
    objects that were found are remembered for the next search.
    """

    def __init__(self, work: str) -> None:
        self._inside = work + os.sep
        self._objects: dict[tuple[int, int], list[weakref.ref[Any]]] = {}

    def flush(self) -> list[Opened]:
        """Flush Python's buffers of all files that are open for writing, and return these files."""
        opened = list(self._open())
        for file in self._files_of(opened):
            with contextlib.suppress(ValueError, OSError):  # closed by another thread, or the script's disk is full
                file.flush()
        return opened

    def move(self, positions: Mapping[str, int]) -> None:
        """
        Move each open file to the position that `positions` gives for its path, or to its end if `positions` gives
        none. Call this after the files' content has been restored.
        """
        opened = list(self._open())
        for each in opened:
            place = positions.get(each.path)
            size_bytes = os.fstat(each.fd).st_size
            to = size_bytes if place is None else place
            os.lseek(each.fd, to, os.SEEK_SET)
            for file in self._files_of([each]):
                with contextlib.suppress(ValueError, OSError):
                    file.seek(to)

    def _open(self) -> Iterator[Opened]:
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
                if not target.startswith(self._inside) or target.endswith(DELETED):
                    continue
                target.encode()
                mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
            except (
                OSError,
                UnicodeEncodeError,
            ):  # the listing's descriptor, a closed one, or a name that is not text
                continue
            if mode != os.O_RDONLY:
                yield Opened(target[len(self._inside) :], fd, mode == os.O_RDWR)

    def _files_of(self, opened: list[Opened]) -> list[Any]:
        """Return the file objects of the descriptors in `opened`, outermost first."""
        keys: dict[tuple[int, int], int] = {}
        for each in opened:
            with contextlib.suppress(OSError):
                keys[each.fd, os.fstat(each.fd).st_ino] = each.fd
        self._objects = {key: references for key, references in self._objects.items() if key in keys}
        if any(not self._alive(key) for key in keys):
            self._search(keys)
        return sorted(
            (file for key in keys for file in self._alive(key)), key=lambda file: KINDS.index(_kind(type(file)))
        )

    def _alive(self, key: tuple[int, int]) -> list[Any]:
        files = (reference() for reference in self._objects.get(key, ()))
        return [file for file in files if file is not None and _descriptor(file) == key[0]]

    def _search(self, keys: Mapping[tuple[int, int], int]) -> None:
        by_fd = {fd: key for key, fd in keys.items()}
        self._objects = {key: [] for key in keys}
        kinds: dict[type, bool] = {}
        for each in gc.get_objects():
            kind = type(each)
            if kind not in kinds:
                kinds[kind] = _kind(kind) is not None
            if kinds[kind] and (key := by_fd.get(_descriptor(each))) is not None:
                self._objects[key].append(weakref.ref(each))


def positions_of(flushed: Iterable[Opened]) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in flushed:
        with contextlib.suppress(OSError):
            found[file.path] = os.lseek(file.fd, 0, os.SEEK_CUR)
    return found


def _kind(kind: type) -> Any:
    return next((known for known in KINDS if known in kind.__mro__), None)


def _descriptor(file: Any) -> int:
    """Return the descriptor of a file object; -1 if it no longer has one."""
    try:
        return -1 if file.closed else int(file.fileno())
    except (ValueError, OSError, AttributeError):  # a detached file object, or one that is not fully initialized
        return -1
