"""Stored files of a script, written into a folder of this machine: each one whole or not at all, and none outside."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from blake3 import blake3

from spotrun.checkpoint.beneath import open_for_reading, parent_of
from spotrun.checkpoint.restore import read_verified
from spotrun.errors import CheckpointDamaged, SpotrunError
from spotrun.folder.stored_files import Fetched, Outcome, OutputFile, Piece
from spotrun.store.port import Store

SIDE_BY_SIDE = 8
RETRY_FOR_S = 30.0
"""System time that a person waits for a passing fault of the store."""
TEMPORARY = ".spotrun-fetch-"
"""How the names of files begin that a killed fetch leaves behind."""
Progressed = Callable[[int], None]
"""Called with the number of bytes that have arrived since the last call."""


def fetch(
    store: Store, files: Sequence[OutputFile], folder: Path, progressed: Progressed, *, force: bool = False
) -> Iterator[Fetched]:
    """
    Write the files below `folder`, which is made if it is absent, and say of each what became of it.

    A file that is there already is left alone, and so is one that was changed later than the stored one, unless
    `force`. One that is longer than the stored one is kept under another name, unless `force`: a later attempt may have
    begun a log anew. A link below `folder` is never followed.

    Raises:
        StoreError: the store cannot be read.
        SpotrunError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="fetch") as pool:
            getting = _Getting(store, root, progressed, force=force)
            small = [file for file in files if len(file.pieces) <= 1]
            coming = [pool.submit(getting.file, file, map) for file in small]
            try:
                for future in coming:
                    yield future.result()
                for file in files:
                    if len(file.pieces) > 1:
                        yield getting.file(file, pool.map)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        os.close(root)


def holds(root: int, file: OutputFile) -> bool:
    """
    Return whether the file at its path below `root`, which has its size, has its bytes too.

    Raises:
        OSError: it cannot be read.
    """
    with open(open_for_reading(root, file.path), "rb") as here:
        return all(blake3(here.read(piece.size_bytes)).hexdigest() == piece.blake3 for piece in file.pieces)


def _cannot_write(folder: Path, error: OSError) -> SpotrunError:
    return SpotrunError(
        f"cannot write into {folder}: {error.strerror}", hint="name a folder that you may write by --to"
    )


Map = Callable[[Callable[[tuple[Piece, int]], None], Sequence[tuple[Piece, int]]], Iterator[None]]


_IN_ITS_WAY = {
    errno.EISDIR: "a folder of that name is there",
    errno.ENOTDIR: "a file or a link is where its folder belongs",
    errno.ELOOP: "a link, or something else that is no file, is there",
}


class _Getting:
    def __init__(self, store: Store, root: int, progressed: Progressed, *, force: bool) -> None:
        self._store = store
        self._root = root
        self._progressed = progressed
        self._force = force

    def file(self, file: OutputFile, each: Map) -> Fetched:
        """`each` gets the pieces, in any order."""
        try:
            outcome = self._outcome(file)
            kept_as = ""
            if outcome is Outcome.FETCHED:
                kept_as = self._write(file, each)
            else:
                self._progressed(file.size_bytes)
            return Fetched(file, outcome, kept_as=kept_as)
        except CheckpointDamaged as damage:
            return Fetched(file, Outcome.FAILED, damage.message, damaged=True)
        except OSError as error:
            if error.errno not in _IN_ITS_WAY:
                raise
            return Fetched(file, Outcome.FAILED, _IN_ITS_WAY[error.errno])

    def _outcome(self, file: OutputFile) -> Outcome:
        """What to do with the file, by what lies at its place."""
        try:
            with parent_of(self._root, file.path) as (parent, name):
                facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return Outcome.FETCHED
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, file.path)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.ELOOP, file.path)
        if facts.st_size == file.size_bytes and holds(self._root, file):
            return Outcome.SAME
        later = facts.st_mtime_ns > file.modified_ns
        return Outcome.CHANGED_HERE if later and not self._force else Outcome.FETCHED

    def _write(self, file: OutputFile, each: Map) -> str:
        """The name under which the file that was there is kept, if it is."""
        with parent_of(self._root, file.path, make=True) as (parent, name):
            temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
            mode = 0o777 if file.executable else 0o666  # the umask takes what it takes
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=parent)
            try:
                try:
                    for _ in each(lambda placed: self._piece(fd, *placed), _placed(file)):
                        pass
                    os.utime(fd, ns=(file.modified_ns, file.modified_ns))
                finally:
                    os.close(fd)
                kept_as = "" if self._force else _kept_if_longer(parent, name, file.size_bytes)
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


def _kept_if_longer(parent: int, name: str, size_bytes: int) -> str:
    """Give a file of more than so many bytes a name that is free, and return that; an empty text if it is none."""
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
    """Each piece with the byte of the file that it begins at."""
    placed, start = [], 0
    for piece in file.pieces:
        placed.append((piece, start))
        start += piece.size_bytes
    return placed
