"""
Reads frozen files (spotrun/folder/frozen_files.py): those that came from the trainer while training goes on, which may
turn out to be torn, and copies of the state of a command.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cached_property

import msgspec

from spotrun.checkpoint.beneath import open_at
from spotrun.folder.frozen_files import ContentSource, FrozenFile, FrozenFolder, sample_at
from spotrun.folder.work_files import Stamp, Survey
from spotrun.trainer_link import FilesFrozen


class TornFile(Exception):
    """A file was written to since, in another way than by more at its end."""


class Descriptors(list[int]):
    """Descriptors that came with a message. The last owner closes them."""

    def close(self) -> None:
        while self:
            os.close(self.pop())

    def __del__(self) -> None:
        self.close()


class Coming:
    """A frozen folder of which not all descriptors have arrived."""

    def __init__(self, message: FilesFrozen, descriptors: Descriptors) -> None:
        self.message = message
        self._descriptors = descriptors

    def more(self, descriptors: Descriptors) -> None:
        self._descriptors += descriptors
        descriptors.clear()

    def whole(self) -> Frozen:
        """
        Return the whole folder.

        Raises:
            msgspec.MsgspecError, AssertionError: it is not what a trainer of ours sends.
        """
        assert len(self._descriptors) == self.message.descriptors + 1
        return received(self.message, self._descriptors)


def received(message: FilesFrozen, descriptors: Descriptors) -> Frozen:
    """Return the frozen folder, which owns the descriptors from now on."""
    index = os.pread(descriptors[0], message.index_bytes, message.index_at)
    return Frozen(msgspec.json.decode(index, type=FrozenFolder), descriptors, message.number)


class Frozen:
    """
    Files at one moment, held until `close`. Those of a training have the `number` of a boundary. A state `is_whole`:
    none of its files may be left out.
    """

    def __init__(self, folder: FrozenFolder, descriptors: Descriptors, number: int | None = None) -> None:
        self.number = number
        self.folder = folder
        self.is_whole = number is None
        self._descriptors = descriptors

    @cached_property
    def survey(self) -> Survey:
        """The survey of that moment."""
        folder = self.folder
        files = {file.path: file.version for file in folder.files}
        return Survey(files, folder.links, folder.folders, folder.refused, folder.gone)

    @property
    def changed_bytes(self) -> int:
        return sum(file.stamp.size_bytes for file in self.folder.files if file.source is not ContentSource.KNOWN)

    @contextlib.contextmanager
    def open(self, file: FrozenFile, work: os.PathLike[str]) -> Iterator[Whole]:
        """
        Yield the bytes of a file. If no process holds it open, it is read in the `work` folder.

        Raises:
            OSError: it cannot be opened.
            TornFile: it has to be copied at another boundary, as one that is KNOWN and is not. Raised at the end, when
                all of it was read, too.
        """
        size_bytes = file.stamp.size_bytes
        match file.source:
            case ContentSource.KNOWN:
                raise TornFile
            case ContentSource.MEMORY:
                yield Whole(self._descriptors[0], file.at, size_bytes)
            case ContentSource.COPY:
                yield Whole(self._descriptors[1 + file.at], 0, size_bytes)
            case ContentSource.OPEN:
                with unchanged(self._descriptors[1 + file.at], file) as whole:
                    yield whole
            case ContentSource.PLACE:
                with at_place(work, file) as whole:
                    yield whole

    def close(self) -> None:
        self._descriptors.close()


class Whole:
    """`size_bytes` of the file that is open as `fd`, from `start` on."""

    def __init__(self, fd: int, start: int, size_bytes: int) -> None:
        self._fd = fd
        self._start = start
        self.size_bytes = size_bytes

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """
        Yield the bytes in pieces.

        Raises:
            TornFile: the file is shorter.
        """
        done = 0
        while done < self.size_bytes:
            data = bytearray()
            wanted = min(piece_bytes, self.size_bytes - done)
            while len(data) < wanted:
                read = os.pread(self._fd, wanted - len(data), self._start + done + len(data))
                if not read:
                    raise TornFile
                data += read
            yield bytes(data)
            done += wanted


@contextlib.contextmanager
def at_place(work: os.PathLike[str], file: FrozenFile) -> Iterator[Whole]:
    """Yield the bytes of a file where it lies. Raises what `Frozen.open` does."""
    fd = open_at(work, file.place)
    try:
        with unchanged(fd, file) as whole:
            yield whole
    finally:
        os.close(fd)


@contextlib.contextmanager
def unchanged(fd: int, file: FrozenFile) -> Iterator[Whole]:
    """Yield the bytes of a file that is open. Raises TornFile unless it is as it was, before and after."""
    _check(fd, file)
    yield Whole(fd, 0, file.stamp.size_bytes)
    _check(fd, file)


def _check(fd: int, file: FrozenFile) -> None:
    """
    Raise TornFile unless a file's time and size are as they were, or it has only grown. Removing or renaming it changes
    neither.
    """
    now, then = Stamp.of(os.fstat(fd)), file.stamp
    if file.source is ContentSource.PLACE:
        if now != then:
            raise TornFile
        return
    rests = (now.size_bytes, now.modified_ns) == (then.size_bytes, then.modified_ns)
    if now.inode != then.inode or (now.size_bytes <= then.size_bytes and not rests):
        raise TornFile
    if b"".join(os.pread(fd, size, start) for start, size in sample_at(then.size_bytes)) != file.sample:
        raise TornFile
