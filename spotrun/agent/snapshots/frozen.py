"""
Reads frozen files (spotrun/folder/frozen_files.py): files as they were at one moment.

The files of a command's state were copied at that moment, so the copies do not change while they are read. Most files
of a training are not copied: the agent reads them in place while the training goes on. If the training changes such a
file before it is read, the file is torn, and cannot be used.
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
    """A file was changed after it was frozen, other than by appending to it."""


class Descriptors(list[int]):
    """File descriptors that came with a message. They are closed when no object holds this list any more."""

    def close(self) -> None:
        while self:
            os.close(self.pop())

    def __del__(self) -> None:
        self.close()


class PartialFrozenFolder:
    """
    A frozen folder that a trainer is still describing: some of the file descriptors have not arrived yet, because they
    are spread over several messages.
    """

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
            msgspec.MsgspecError, AssertionError: the message is invalid, so spotrun's callback did not send it.
        """
        assert len(self._descriptors) == self.message.descriptors + 1
        return received(self.message, self._descriptors)


def received(message: FilesFrozen, descriptors: Descriptors) -> Frozen:
    """
    Return the frozen folder that the trainer has described. The returned object takes over the descriptors, and closes
    them.
    """
    index = os.pread(descriptors[0], message.index_bytes, message.index_at)
    return Frozen(msgspec.json.decode(index, type=FrozenFolder), descriptors, message.number)


class Frozen:
    """
    Files as they were at one moment, kept until `close` is called. For a training's files, `number` identifies the step
    boundary at which they were frozen; it is None for a command's state. `is_whole` is True if no file may be left out,
    as in a command's state.
    """

    def __init__(self, folder: FrozenFolder, descriptors: Descriptors, number: int | None = None) -> None:
        self.number = number
        self.folder = folder
        self.is_whole = number is None
        self._descriptors = descriptors

    @cached_property
    def survey(self) -> Survey:
        """The survey of the files at the moment at which they were frozen."""
        folder = self.folder
        files = {file.path: file.version for file in folder.files}
        return Survey(files, folder.links, folder.folders, folder.refused, folder.gone)

    @property
    def changed_bytes(self) -> int:
        return sum(file.stamp.size_bytes for file in self.folder.files if file.source is not ContentSource.KNOWN)

    @contextlib.contextmanager
    def open(self, file: FrozenFile, work: os.PathLike[str]) -> Iterator[FileReader]:
        """
        Yield a reader for the bytes of a file. If the file was neither copied nor kept open, it is read in the `work`
        folder.

        Raises:
            OSError: the file cannot be opened.
            TornFile: the file has changed, so it has to be copied at a later step boundary. Some changes are noticed
                only after all bytes have been read. TornFile is also raised if the trainer marked the file as KNOWN
                (already in the store), but the store does not have it.
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
    """A reader for a range of the open file `fd`: `size_bytes` bytes from byte `start` on."""

    def __init__(self, fd: int, start: int, size_bytes: int) -> None:
        self._fd = fd
        self._start = start
        self.size_bytes = size_bytes

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """
        Yield the bytes of the range in pieces of `piece_bytes`; the last piece may be shorter.

        Raises:
            TornFile: the file ends within the range, because it was truncated.
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
    """Yield a reader for a file at its place in the `work` folder. Raise the same errors as `Frozen.open`."""
    fd = open_at(work, file.place)
    try:
        with unchanged(fd, file) as whole:
            yield whole
    finally:
        os.close(fd)


@contextlib.contextmanager
def unchanged(fd: int, file: FrozenFile) -> Iterator[FileReader]:
    """
    Yield a reader for the open file `fd`. Check before and after the `with` block whether the file has changed since it
    was frozen; if so, raise TornFile.
    """
    _check(fd, file)
    yield FileReader(fd, 0, file.stamp.size_bytes)
    _check(fd, file)


def _check(fd: int, file: FrozenFile) -> None:
    """
    Raise TornFile if the file has changed since it was frozen. If the file was kept open, two changes are allowed. The
    file may have grown, as long as a sample of its old content is unchanged. And the file may have been removed from
    its folder, because an open file can still be read.
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
