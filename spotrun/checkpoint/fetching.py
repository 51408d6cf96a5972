"""
Writes a script's stored files into a local folder. Each file is written completely or not at all, and never outside the
folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from spotrun.checkpoint.restore import read_verified
from spotrun.checkpoint.safe_open import open_at, open_for_reading, parent_of
from spotrun.errors import CheckpointDamaged, SpotrunError
from spotrun.folder.fetched_names import unfetched
from spotrun.folder.stored_files import Content, Fetched, Outcome, OutputFile, Piece
from spotrun.folder.tool_folders import tool_of
from spotrun.store.port import Store

SIDE_BY_SIDE = 8
RETRY_FOR_S = 30.0
"""Maximum seconds of system time for retries while the store has a fault. It is short, because the user is waiting."""
TEMPORARY = ".spotrun-fetch-"
"""Prefix of the names of temporary files. A fetch that is killed leaves them behind."""
Progressed = Callable[[int], None]
"""Called with the number of bytes that have arrived since the last call."""


class Record(Protocol):
    """
    A record of the files that earlier fetches wrote into a folder.

    Instances must not be able to forge the record. So it is kept where no instance can write, and does not rely on
    values in the store that an instance can choose, such as the files' times. Several threads may use the record at the
    same time.
    """

    def written(self, path: str) -> Sequence[Content] | None:
        """Return the pieces of the file that a fetch last wrote at `path`; None if no fetch has written there."""

    def add(self, path: str, contents: Sequence[Content]) -> None:
        """Record the contents that a fetch has written at `path`."""


def fetch(
    store: Store,
    files: Sequence[OutputFile],
    folder: Path,
    progressed: Progressed,
    record: Record,
    *,
    force: bool = False,
) -> Iterator[Fetched]:
    """
    Write the files into a user's folder, which is created if absent, and yield the outcome of each.

    Names, times and sizes of the files may come from training code that is not trusted. So links below `folder` are
    never followed, and nothing is written into folders of git or of a virtual environment. For each file:
    - If its name could make a tool run the file or read it as configuration, the file is not fetched.
    - If the local file has the same bytes, it is not written again.
    - If the local file differs from what an earlier fetch wrote (see `record`), the user has made or changed it. It is
      kept, unless `force` is True.
    - If the local file is longer than the stored file, it is renamed before the stored file is written, unless `force`
      is True. For example, a later attempt may have started a log again, and the user may still want the longer log.

    Raises:
        StoreError: the store cannot be read.
        SpotrunError: the folder cannot be written to, or the files do not fit on its disk.
    """
    wanted = []
    for file in files:
        reason = unfetched(file.path)
        if reason is None:
            wanted.append(file)
        else:
            progressed(file.size_bytes)
            yield Fetched(file, Outcome.REFUSED if reason.is_refused else Outcome.LEFT, reason)
    _require_space(folder, sum(_growth_bytes(folder, file, record, force=force) for file in wanted))
    yield from _written(folder, wanted, lambda root: _ToUser(store, root, progressed, record, force=force))


def _growth_bytes(folder: Path, file: OutputFile, record: Record, *, force: bool) -> int:
    """Return how many bytes the folder grows by if the file is fetched. Only the size of the local file is read."""
    try:
        here_bytes = os.lstat(folder / file.path).st_size
    except OSError:
        return file.size_bytes
    if force:
        return max(0, file.size_bytes - here_bytes)
    if record.written(file.path) is None:
        return 0  # the file is the user's, so it is kept
    is_kept_too = here_bytes > file.size_bytes
    return file.size_bytes if is_kept_too else file.size_bytes - here_bytes


def _require_space(folder: Path, needed_bytes: int) -> None:
    """
    Check the space before anything is written, because a list of a few kilobytes can name a file of any size.

    Raises:
        SpotrunError: the disk of `folder` has less space, or cannot be asked.
    """
    try:
        disk = shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.exists()))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    if disk.total and needed_bytes > disk.free:  # some mounted folders do not say their size
        needed, free = (f"{size_bytes / 1e6:,.1f} MB" for size_bytes in (needed_bytes, disk.free))
        raise SpotrunError(
            f"the files need {needed}, but the disk of {folder} has only {free} free",
            hint="name only the files that you need (--list shows their sizes), or use --to to name a folder on "
            "another disk",
        )


def bring(store: Store, files: Sequence[OutputFile], folder: Path) -> Iterator[Fetched]:
    """
    Write the files into a folder of the agent, whatever their names are. Existing files are replaced. Raises
    the same errors as `fetch`.
    """
    yield from _written(folder, files, lambda root: _Writer(store, root, lambda _: None))


def _written(folder: Path, files: Sequence[OutputFile], writer_in: Callable[[int], _Writer]) -> Iterator[Fetched]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="fetch") as pool:
            writer = writer_in(root)
            small = [file for file in files if len(file.pieces) <= 1]
            coming = [pool.submit(writer.file, file, map) for file in small]
            try:
                for future in coming:
                    yield future.result()
                for file in files:
                    if len(file.pieces) > 1:
                        yield writer.file(file, pool.map)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        os.close(root)


def is_at(folder: Path, file: OutputFile) -> bool:
    """
    Return True if the local copy of `file` in `folder` is readable and has the same bytes. The caller has already
    compared the sizes.
    """
    try:
        return _holds(open_at(folder, file.path), [piece.content for piece in file.pieces])
    except OSError:
        return False


def _holds(fd: int, contents: Sequence[Content]) -> bool:
    with open(fd, "rb") as here:
        return all(blake3(here.read(size)).hexdigest() == digest for digest, size in contents)


def _cannot_write(folder: Path, error: OSError) -> SpotrunError:
    elsewhere = "on another disk" if error.errno == errno.ENOSPC else "that you can write to"
    return SpotrunError(f"cannot write into {folder}: {error.strerror}", hint=f"use --to to name a folder {elsewhere}")


Map = Callable[[Callable[[tuple[Piece, int]], None], Sequence[tuple[Piece, int]]], Iterator[None]]


_IN_ITS_WAY = {
    errno.EISDIR: "a folder of that name exists",
    errno.ENOTDIR: "a file or a link is in the place of its folder",
    errno.ELOOP: "a link or a special file is in its place",
}


_OF_ONE_FILE = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})
"""
Errors that concern only one file: permissions, and names that a file system does not accept. The other files are still
written.
"""


class _OfATool(Exception):
    """A file must not be written, because its folder belongs to a tool that may run the file or use it as settings."""


class _Writer:
    """Writes files below `root`, and replaces existing files."""

    def __init__(self, store: Store, root: int, progressed: Progressed) -> None:
        self._store = store
        self._root = root
        self._progressed = progressed

    def file(self, file: OutputFile, each: Map) -> Fetched:
        """
        Write one file, and return the outcome. `each` is the function that fetches the file's pieces: `map` fetches
        them one after another, and a thread pool's `map` several at a time.
        """
        try:
            return self._fetched(file, each)
        except CheckpointDamaged as damage:
            return Fetched(file, Outcome.FAILED, damage.message, damaged=True)
        except OSError as error:
            if error.errno not in _IN_ITS_WAY:
                raise
            return Fetched(file, Outcome.FAILED, _IN_ITS_WAY[error.errno])

    def _fetched(self, file: OutputFile, each: Map) -> Fetched:
        return Fetched(file, Outcome.FETCHED, kept_as=self._write(file, each))

    def _judge(self, folder: int) -> None:
        """
        Raise an error if nothing may be written into `folder` or below it. This class allows all folders; subclasses
        may refuse some.
        """

    def _make_room(self, parent: int, name: str, file: OutputFile) -> str:
        """Rename the existing file if it has to be kept, and return its new name; "" if no file was renamed."""
        return ""

    def _write(self, file: OutputFile, each: Map) -> str:
        with parent_of(self._root, file.path, make=True, judge=self._judge) as (parent, name):
            temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
            mode = 0o777 if file.executable else 0o666  # the system takes off the umask
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=parent)
            try:
                try:
                    for _ in each(lambda placed: self._piece(fd, *placed), _placed(file)):
                        pass
                    os.utime(fd, ns=(file.modified_ns, file.modified_ns))
                finally:
                    os.close(fd)
                kept_as = self._make_room(parent, name, file)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
                return kept_as
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise

    def _piece(self, fd: int, piece: Piece, start: int) -> None:
        data = bytearray()

        def take(at: int, part: memoryview) -> None:
            data[at:] = part

        read_verified(self._store, piece.key, piece.blake3, piece.size_bytes, take, RETRY_FOR_S)
        with memoryview(data) as view:
            written = 0
            while written < len(view):
                written += os.pwrite(fd, view[written:], start + written)
        self._progressed(piece.size_bytes)


class _ToUser(_Writer):
    """Writes files into the user's folder. Without `force`, it never replaces a file that the user made or changed."""

    def __init__(self, store: Store, root: int, progressed: Progressed, record: Record, *, force: bool) -> None:
        super().__init__(store, root, progressed)
        self._record = record
        self._force = force

    def file(self, file: OutputFile, each: Map) -> Fetched:
        try:
            return super().file(file, each)
        except _OfATool as refusal:
            self._progressed(file.size_bytes)
            return Fetched(file, Outcome.REFUSED, str(refusal))
        except OSError as error:
            if error.errno not in _OF_ONE_FILE:
                raise
            return Fetched(file, Outcome.FAILED, f"it cannot be read or written here: {error.strerror}")

    def _judge(self, folder: int) -> None:
        if tool := tool_of(folder):
            raise _OfATool(f"{tool} runs or obeys the files in this folder")

    def _fetched(self, file: OutputFile, each: Map) -> Fetched:
        contents = [piece.content for piece in file.pieces]
        if (outcome := self._there(file, contents)) is not None:
            self._progressed(file.size_bytes)
            return Fetched(file, outcome)
        found = super()._fetched(file, each)
        self._record.add(file.path, contents)
        return found

    def _there(self, file: OutputFile, contents: Sequence[Content]) -> Outcome | None:
        """
        Return None if the file can be written: it does not exist yet, or it may be replaced. Otherwise return why it is
        not written: the existing file is the same (SAME), or the user has changed it (CHANGED_HERE).
        """
        try:
            with parent_of(self._root, file.path, judge=self._judge) as (parent, name):
                facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, file.path)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.ELOOP, file.path)
        if self._holds(file.path, facts.st_size, contents):
            return Outcome.SAME
        if self._force:
            return None
        ours = self._record.written(file.path)
        is_ours = ours is not None and self._holds(file.path, facts.st_size, ours)
        return None if is_ours else Outcome.CHANGED_HERE

    def _holds(self, path: str, size_bytes: int, contents: Sequence[Content]) -> bool:
        return size_bytes == sum(size for _, size in contents) and _holds(open_for_reading(self._root, path), contents)

    def _make_room(self, parent: int, name: str, file: OutputFile) -> str:
        return "" if self._force else _kept_if_longer(parent, name, file.size_bytes)


def _kept_if_longer(parent: int, name: str, size_bytes: int) -> str:
    """Rename the file if it is longer than `size_bytes`, and return its new name; "" if it was not renamed."""
    try:
        if os.stat(name, dir_fd=parent, follow_symlinks=False).st_size <= size_bytes:
            return ""
    except FileNotFoundError:
        return ""
    taken = set(os.listdir(parent))
    free = next(other for number in count(1) if (other := f"{name}.~{number}~") not in taken)
    os.rename(name, free, src_dir_fd=parent, dst_dir_fd=parent)
    return free


def _placed(file: OutputFile) -> list[tuple[Piece, int]]:
    """Return each piece with its offset in the file."""
    placed, start = [], 0
    for piece in file.pieces:
        placed.append((piece, start))
        start += piece.size_bytes
    return placed
