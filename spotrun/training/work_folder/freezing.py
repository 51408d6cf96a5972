"""
Freezes the work folder at a boundary: records its files and their contents at this moment, for a checkpoint. Training
does not wait while large files are copied.

A small file is copied immediately. A large file is kept open instead, and the agent reads it while training continues.
If the script writes to the file before the agent has read it, the agent's copy is torn: it mixes old and new content.
After that, this file is copied immediately at each boundary, like a small file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from spotrun.folder.frozen_files import ContentSource, FrozenFile, FrozenFolder, copy_bytes, sample_at, unnamed
from spotrun.folder.work_files import FileVersion, Stamp, Survey, survey
from spotrun.trainer_link import FDS_MAX, FilesFrozen, Message, MoreFiles
from spotrun.training.work_folder.open_files import Opened
from spotrun.wire import plain

SMALL_BYTES = 256 << 10
SMALL_TOGETHER_BYTES = 64 << 20
"""
Maximum bytes of small files that are copied at a boundary. Copying this amount takes 20 to 40 ms. Further small files
are treated like large files.
"""
DESCRIPTORS_MAX = 100
"""
Maximum number of files that are kept open for one frozen folder. By default a process may have 1,024 open files, and an
agent has up to three frozen folders.
"""
TRIES = 3
TICK_NS = 20_000_000
"""
Time in nanoseconds within which two writes may give a file the same modification time. (The kernel's clock advances
only every 4 or 10 ms.)
"""
PLACES_MAX = 20_000
"""
Maximum number of files in a frozen folder. The same limit applies, separately, to its links, to its folders, and to the
paths that cannot be saved. (The agent's own limit for stored files is lower.)
"""


class Frozen:
    """The state of a work folder at a boundary. It holds memory and open files until it is sent or closed."""

    def __init__(self, number: int, memory: int | None = None) -> None:
        self.number = number
        self.stamps: dict[str, FileVersion] = {}
        """
        Size and modification time of each file at this boundary. A file that has the same size and time at a later
        boundary is taken to be unchanged.
        """
        self._memory = os.memfd_create("spotrun-files", os.MFD_CLOEXEC) if memory is None else memory
        self._descriptors: list[int] = []
        self._at = 0
        self._index_bytes = 0

    def add(self, data: bytes) -> int:
        """Append `data` to the folder's memory, and return the offset at which it starts."""
        start, written = self._at, 0
        while written < len(data):
            written += os.pwrite(self._memory, data[written:], start + written)
        self._at += len(data)
        return start

    def hold(self, fd: int) -> int:
        """Take ownership of the file descriptor `fd`. Return its index among the descriptors that this object owns."""
        self._descriptors.append(fd)
        return len(self._descriptors) - 1

    @property
    def is_full(self) -> bool:
        return len(self._descriptors) >= DESCRIPTORS_MAX

    @property
    def size_bytes(self) -> int:
        return self._at

    def write_index(self, index: bytes) -> None:
        self._index_bytes = len(index)
        self.add(index)

    def send(self, tell: Callable[[Message, Collection[int]], object]) -> None:
        """Send the frozen folder to the agent, then close it here."""
        index_at = self._at - self._index_bytes
        first = self._descriptors[: FDS_MAX - 1]
        tell(
            FilesFrozen(
                number=self.number, index_at=index_at, index_bytes=self._index_bytes, descriptors=len(self._descriptors)
            ),
            (self._memory, *first),
        )
        for start in range(len(first), len(self._descriptors), FDS_MAX):
            tell(MoreFiles(), self._descriptors[start : start + FDS_MAX])
        self.close()

    def duplicate(self) -> Frozen:
        other = Frozen(self.number, os.dup(self._memory))
        other._descriptors = [os.dup(fd) for fd in self._descriptors]
        other.stamps, other._at, other._index_bytes = self.stamps, self._at, self._index_bytes
        return other

    def close(self) -> None:
        for fd in (self._memory, *self._descriptors):
            if fd >= 0:
                os.close(fd)
        self._memory, self._descriptors = -1, []

    def __del__(self) -> None:
        self.close()


class Freezer:
    """
    Freezes the folder `work` at each boundary. Checkpoints include a file only if `chosen(path)` is true. `before`
    lists the files that were in the folder before the script began. Checkpoints include such a file only if it has
    changed since.
    """

    def __init__(self, work: str, before: Mapping[str, Stamp], chosen: Callable[[str], bool]) -> None:
        self._work = work
        self._before = before
        self._chosen = chosen
        self._number = 0
        self._known: dict[str, FileVersion] = {}
        self._unsettled: dict[int, dict[str, FileVersion]] = {}
        self._copied: set[str] = set()
        self._resting: tuple[Survey, bytes] | None = None
        """
        The newest boundary at which the agent already had all files of the folder. The tuple has the folder's state at
        that boundary, and the index of files that was sent. As long as the folder does not change, the same index is
        sent again.
        """

    def begin_with(self, opened: Iterable[Opened]) -> None:
        """Record that the folder has the content of the checkpoint from which training resumes."""
        seen = survey(Path(self._work), self._before, self._chosen)
        self._known = _lasting(seen.files, time.time_ns(), {each.path for each in opened if each.updates})

    def committed(self, number: int) -> None:
        """
        Record that the agent has committed the checkpoint that contains frozen folder `number`. Files that have not
        changed since its boundary need not be sent again.
        """
        if number in self._unsettled:
            self._known = self._unsettled[number]
            self._unsettled = {other: known for other, known in self._unsettled.items() if other > number}

    def torn(self, paths: Iterable[str]) -> None:
        """
        From now on, copy the files `paths` immediately at each boundary, because the agent's copies of them were torn.
        """
        self._copied |= set(paths)
        for path in paths:
            for known in (self._known, *self._unsettled.values()):
                known.pop(path, None)

    def freeze(self, opened: Collection[Opened], *, final: bool = False) -> Frozen:
        """
        Return the folder's current state. `opened` are the files that are open for writing. If `final` is True, this is
        the last boundary. Then these files are copied immediately, so that they cannot be torn: no later checkpoint
        could replace this one.
        """
        frozen = Frozen(self._number)
        self._number += 1
        try:
            self._fill(frozen, opened, final=final)
        except BaseException:
            frozen.close()
            raise
        return frozen

    def _fill(self, frozen: Frozen, opened: Collection[Opened], *, final: bool) -> None:
        updated = {each.path for each in opened if each.updates}
        copied = self._copied | updated | ({each.path for each in opened} if final else set())
        seen = survey(Path(self._work), self._before, self._chosen)
        is_known = not updated and seen.files.items() <= self._known.items()
        if is_known and self._resting is not None and self._resting[0] == seen:
            frozen.stamps = self._unsettled[frozen.number] = seen.files
            frozen.write_index(self._resting[1])
            return
        refused = {path: why for path, why in seen.refused.items() if path not in seen.links}
        files: list[FrozenFile] = []
        for path, each in sorted(seen.files.items(), key=lambda item: (item[1].stamp.size_bytes, item[0])):
            if path in seen.links:
                continue
            if self._known.get(path) == each:
                files.append(FrozenFile(path, each.place, each.stamp, ContentSource.KNOWN))
                continue
            try:
                file = self._hold(frozen, path, each, copy=path in copied or each.place in copied)
            except FileNotFoundError:
                continue  # another thread or process has removed the file
            except OSError as error:
                refused[path] = f"it cannot be read: {error.strerror}"
                continue
            files.append(file)
        frozen.stamps = _lasting({file.path: file.version for file in files}, time.time_ns(), updated)
        self._unsettled[frozen.number] = frozen.stamps
        names = dict(sorted(refused.items())[:PLACES_MAX])
        links = dict(sorted(seen.links.items())[:PLACES_MAX])
        folders = dict(sorted(seen.folders.items())[:PLACES_MAX])
        index = plain.encode(FrozenFolder(tuple(files[:PLACES_MAX]), names, seen.gone, links, folders))
        self._resting = (seen, index) if is_known else None
        frozen.write_index(index)

    def _hold(self, frozen: Frozen, path: str, seen: FileVersion, *, copy: bool) -> FrozenFile:
        size_bytes = seen.stamp.size_bytes
        small = size_bytes <= SMALL_BYTES and frozen.size_bytes + size_bytes <= SMALL_TOGETHER_BYTES
        if not small and frozen.is_full:
            return FrozenFile(path, seen.place, seen.stamp, ContentSource.PLACE)
        fd = os.open(os.path.join(self._work, seen.place), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if small:
                data, stamp = _read_between_writes(fd)
                return FrozenFile(path, seen.place, stamp, ContentSource.MEMORY, frozen.add(data))
            stamp = Stamp.of(os.fstat(fd))
            if copy:
                number = frozen.hold(to := unnamed(os.path.dirname(self._work)))
                copy_bytes(fd, to, 0, stamp.size_bytes)
                return FrozenFile(path, seen.place, stamp, ContentSource.COPY, number)
            sample = b"".join(os.pread(fd, size, start) for start, size in sample_at(stamp.size_bytes))
            number, fd = frozen.hold(fd), -1
            return FrozenFile(path, seen.place, stamp, ContentSource.OPEN, number, sample)
        finally:
            if fd >= 0:
                os.close(fd)


def _lasting(files: Mapping[str, FileVersion], now_ns: int, updated: Collection[str]) -> dict[str, FileVersion]:
    """
    Select the files in which every later change will show in the size or the modification time. Two kinds of files are
    left out. If a file was written within the last TICK_NS, another write might leave its modification time unchanged.
    The files `updated` may be written through a memory mapping, and such a write may change the modification time only
    later.
    """
    return {
        path: seen
        for path, seen in files.items()
        if seen.stamp.modified_ns < now_ns - TICK_NS and path not in updated and seen.place not in updated
    }


def _read_between_writes(fd: int) -> tuple[bytes, Stamp]:
    """
    Return a file's content, and its size and modification time. If the file changes while it is read, it is read again,
    up to TRIES times in total. If it changes each time, the content may not match the size and time.
    """
    data, stamp = bytearray(), Stamp.of(os.fstat(fd))
    for _ in range(TRIES):
        data, stamp = bytearray(), Stamp.of(os.fstat(fd))
        while len(data) < stamp.size_bytes and (piece := os.pread(fd, stamp.size_bytes - len(data), len(data))):
            data += piece
        if Stamp.of(os.fstat(fd)) == stamp:
            break
    return bytes(data), Stamp(len(data), *stamp[1:])
