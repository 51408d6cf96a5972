"""
Reads frozen files (spotrun/folder/frozen_files.py). These are copies of a command's state, or a trainer's files. A
trainer's files may be torn, because training continues.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cached_property

import msgspec

from spotrun.checkpoint.safe_open import open_at
from spotrun.folder.frozen_files import ContentSource, FrozenFile, FrozenFolder, sample_at
from spotrun.folder.work_files import Stamp, Survey
from spotrun.trainer_link import FilesFrozen


class TornFile(Exception):
    """A file was changed after it was frozen, and the change is not only an appended part."""


class Descriptors(list[int]):
    """The file descriptors that came with a message. The object that owns them last closes them."""

    def close(self) -> None:
        while self:
            os.close(self.pop())

    def __del__(self) -> None:
        self.close()


class PartialFrozenFolder:
    """A frozen folder of which some descriptors have not arrived yet."""

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
            msgspec.MsgspecError, AssertionError: no trainer with spotrun's callback sends this.
        """
        assert len(self._descriptors) == self.message.descriptors + 1
        return received(self.message, self._descriptors)


def received(message: FilesFrozen, descriptors: Descriptors) -> Frozen:
    """Return the frozen folder. It then owns the descriptors."""
    index = os.pread(descriptors[0], message.index_bytes, message.index_at)
    return Frozen(msgspec.json.decode(index, type=FrozenFolder), descriptors, message.number)


class Frozen:
    """
    Files as they were at one time, kept until `close` is called. `number` is the step boundary at which a training's
    files were frozen. `is_whole`: the files are a command's state, so none of them may be left out.
    """

    def __init__(self, folder: FrozenFolder, descriptors: Descriptors, number: int | None = None) -> None:
        self.number = number
        self.folder = folder
        self.is_whole = number is None
        self._descriptors = descriptors

    @cached_property
    def survey(self) -> Survey:
        """The survey of the files at the time when they were frozen."""
        folder = self.folder
        files = {file.path: file.version for file in folder.files}
        return Survey(files, folder.links, folder.folders, folder.refused, folder.gone)

    @property
    def changed_bytes(self) -> int:
        return sum(file.stamp.size_bytes for file in self.folder.files if file.source is not ContentSource.KNOWN)

    @contextlib.contextmanager
    def open(self, file: FrozenFile, work: os.PathLike[str]) -> Iterator[FileReader]:
        """
        Yield the bytes of a file. A file that was neither copied nor kept open is read in the `work` folder.

        Raises:
            OSError: the file cannot be opened.
            TornFile: the file has to be copied at another step boundary. This may also be raised after all bytes were
                read, and for a file that the trainer wrongly took to be stored already (KNOWN).
        """
        size_bytes = file.stamp.size_bytes
        match file.source:
            case ContentSource.KNOWN:
                raise TornFile
            case ContentSource.MEMORY:
                yield FileReader(self._descriptors[0], file.at, size_bytes)
            case ContentSource.COPY:
                yield FileReader(self._descriptors[1 + file.at], 0, size_bytes)
            case ContentSource.OPEN:
                with unchanged(self._descriptors[1 + file.at], file) as whole:
                    yield whole
            case ContentSource.PLACE:
                with at_place(work, file) as whole:
                    yield whole

    def close(self) -> None:
        self._descriptors.close()


class FileReader:
    """`size_bytes` bytes of the open file `fd`, from byte `start`."""

    def __init__(self, fd: int, start: int, size_bytes: int) -> None:
        self._fd = fd
        self._start = start
        self.size_bytes = size_bytes

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """
        Yield the bytes in pieces.

        Raises:
            TornFile: the file has become shorter.
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
def at_place(work: os.PathLike[str], file: FrozenFile) -> Iterator[FileReader]:
    """Yield the bytes of a file at its place in the `work` folder. Raise the errors of `Frozen.open`."""
    fd = open_at(work, file.place)
    try:
        with unchanged(fd, file) as whole:
            yield whole
    finally:
        os.close(fd)


@contextlib.contextmanager
def unchanged(fd: int, file: FrozenFile) -> Iterator[FileReader]:
    """
    Yield the bytes of the open file `fd`. Check before and after whether the file was changed since it was frozen; if
    so, raise TornFile.
    """
    _check(fd, file)
    yield FileReader(fd, 0, file.stamp.size_bytes)
    _check(fd, file)


def _check(fd: int, file: FrozenFile) -> None:
    """
    Raise TornFile if the file's time or size has changed, unless the file has only grown. A removal changes neither.
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
