"""
A local folder as an object store (protocol 29). Only its owner can read it, unless the owner shares the folder with a
group.

fsspec reads and writes the bytes of the objects. This module adds three things that fsspec does not do on a local disk.
It writes to the disk with fsync. It makes a file visible only when it is complete. And it can create a file only if the
file does not exist.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from spotrun.errors import NO_ROOM, ObjectMissing, StoreError, StoreUnavailable, WritesRefused
from spotrun.store.port import StoredObject, StoreFacts, checked_key, is_key

_TEMPORARY = ".tmp-"
"""
Prefix of temporary files, which are never listed as objects. An object is first written to a temporary file, and a link
or a rename then gives this file the object's name. That is possible only within one file system, so the temporary file
is in the same folder as the object.
"""
_ANOTHER_FOLDER = "name another folder, in --store, SPOTRUN_STORE or checkpoint.uri"
_LASTING = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
"""Errors that a further try will not change. A link that leads to itself is one."""
WRITE_TRIES = 1000
"""
Maximum number of tries to write an object. Another process that deletes the last object in a folder deletes the folder
too. If this happens during a try, the try fails. On a busy machine, this happens often.
"""


class LocalStore:
    """A folder as a store. Each object is a file, and its key is the path below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.expanduser().absolute()
        self._files = LocalFileSystem(skip_instance_cache=True)
        self.uri = str(self._folder)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._publishing(key, data, durable=True) as (temporary, target):
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            _sync_folder(target.parent)
            return True

    def put(self, key: str, data: bytes | memoryview) -> bool:
        with self._publishing(key, data, durable=True) as (temporary, target):
            os.replace(temporary, target)
            _sync_folder(target.parent)
        return False

    def put_status(self, key: str, data: bytes) -> None:
        with self._publishing(key, data, durable=False) as (temporary, target):
            os.replace(temporary, target)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        path = self._path(key)
        with self._translated(key):
            _require_file(path)
            with self._files.open(str(path), "rb", block_size=None) as file:
                file.seek(start)
                # Python allocates the memory for `size` bytes before it reads, and the caller may not know how many
                # there are.
                there = max(0, path.stat().st_size - start)
                data: bytes = file.read(there if size is None else min(size, there))
                return data

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        with self._translated(prefix):
            chosen = sorted(name for name in self._names(prefix) if name > after and is_key(name))
            return [stored for key in chosen if (stored := self._stored(key)) is not None]

    def strange_names(self, prefix: str) -> builtins.list[str]:
        with self._translated(prefix):
            return sorted(name for name in self._names(prefix) if not is_key(name))

    def folders(self) -> tuple[str, ...]:
        try:
            with self._translated(""), os.scandir(self._folder) as found:
                return tuple(sorted(item.name for item in found if item.is_dir(follow_symlinks=False)))
        except ObjectMissing:
            return ()

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._translated(key), contextlib.suppress(FileNotFoundError):
            if self._is_behind_a_link(path.parent):
                return
            path.unlink()
            # An object store has no empty folders. So remove a folder together with its last object, unless the folder
            # also has other files.
            with contextlib.suppress(OSError):
                for above in path.relative_to(self._folder).parents[:-1]:
                    (self._folder / above).rmdir()

    def inspect(self) -> StoreFacts:
        with self._translated(""):
            there = next(folder for folder in (self._folder, *self._folder.parents) if folder.exists())
            free_bytes = shutil.disk_usage(there).free
        return StoreFacts(region=None, expiries=(), versioned=False, free_bytes=free_bytes)

    def require_writable(self) -> None:
        """
        Check that the store's folder can be written, or created. To do so, create a temporary file in it, or in the
        folder above it that exists, and remove this file.

        Raises:
            StoreError: nothing can be created there.
        """
        with self._translated(""):
            there = next(folder for folder in (self._folder, *self._folder.parents) if folder.exists())
            if not there.is_dir():
                raise StoreError(f"{there} is not a folder", hint=_ANOTHER_FOLDER)
            try:
                descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=there)
            except FileNotFoundError as error:
                raise StoreError(f"cannot make a folder in {there}", hint=_ANOTHER_FOLDER) from error
            except OSError as error:
                error.filename = str(there)
                raise
            os.close(descriptor)
            os.unlink(name)

    def _names(self, prefix: str) -> Iterator[str]:
        """
        Yield the names of all files in the store that begin with `prefix`, including names that are not valid keys.
        Links to folders are not followed: the files behind them are not part of the store.
        """
        top = self._folder / prefix.rpartition("/")[0]
        if not self._is_behind_a_link(top):
            names = (path.relative_to(self._folder).as_posix() for path in _files_below(top))
            yield from (name for name in names if name.startswith(prefix))

    def _is_behind_a_link(self, folder: Path) -> bool:
        """
        Return True if `folder`, or a folder between it and the store's own folder, is a link. The store's own folder
        may be a link.
        """
        below = (each for each in (folder, *folder.parents) if self._folder in each.parents)
        return any(each.is_symlink() for each in below)

    def _path(self, key: str) -> Path:
        return self._folder / checked_key(key)

    def _stored(self, key: str) -> StoredObject | None:
        try:
            status = (self._folder / key).stat()
        except FileNotFoundError:
            return None
        modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
        return StoredObject(key=key, size_bytes=status.st_size, modified_at=modified_at)

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectMissing(f"there is no {key}") from error
        except OSError as error:
            if error.errno in _LASTING:
                raise StoreError(
                    f"{error.filename or key}: {error.strerror}",
                    hint=f"check who has access to this folder, or {_ANOTHER_FOLDER}",
                ) from error
            if (fix := NO_ROOM.get(error.errno or 0)) is not None:
                raise WritesRefused(
                    f"{self._folder} takes no writes: {error.strerror}",
                    hint=f"{fix}; the runs in it then continue by themselves",
                ) from error
            raise StoreUnavailable(
                f"{key}: {error.strerror or error}", hint="check the disk on which the folder in checkpoint.uri lies"
            ) from error

    @contextlib.contextmanager
    def _publishing(self, key: str, data: bytes | memoryview, *, durable: bool) -> Iterator[tuple[Path, Path]]:
        """
        Write `data` to a temporary file in the target's folder, and yield the paths of the temporary file and the
        target. The caller then renames or links the temporary file to the target. At the end, remove the temporary
        file.
        """
        target = self._path(key)
        temporary = target.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        with self._translated(key):
            if self._is_behind_a_link(target.parent):
                raise StoreError(
                    f"{target.parent} is a link, or in one, and nothing is written there",
                    hint="delete the link: spotrun has not created it",
                )
            self._write(temporary, data, durable=durable)
            try:
                yield temporary, target
            finally:
                temporary.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes | memoryview, *, durable: bool) -> None:
        for _ in range(WRITE_TRIES):
            try:
                _make_folder(path.parent)
                with self._files.open(str(path), "wb") as file:
                    os.fchmod(file.fileno(), 0o660 if _is_shared(path.parent) else 0o600)
                    file.write(data)
                    if durable:
                        file.flush()
                        os.fsync(file.fileno())
                return
            except (FileNotFoundError, FileExistsError):
                continue  # another process deleted the folder with its last object in the meantime
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        if path.parent.exists() and not path.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent))
        if not path.parent.exists():
            above = next(folder for folder in path.parents if folder.exists())
            raise StoreError(
                f"cannot make a folder in {above}",
                hint=_ANOTHER_FOLDER,
            )
        raise OSError(errno.EAGAIN, f"other processes keep deleting the folder {path.parent}", str(path))


def _require_file(path: Path) -> None:
    """
    Check that the path is a regular file or a folder.

    Raises:
        StoreError: the path is a pipe, where a reader would wait for a writer, or a device, which may never end.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise StoreError(f"{path} is neither a file nor a folder", hint="delete it: spotrun has not created it")


def _make_folder(folder: Path) -> None:
    """
    Create a folder and its missing parents. Only their owner can access them, because logs and scripts may contain text
    that no other user of the machine should read.

    To share a store with a group, its owner gives the group the right to write to the store's folder. The group can
    then also access the folders that are created in it.
    """
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
        if _is_shared(folder.parent):
            folder.chmod(0o770 | folder.parent.stat().st_mode & stat.S_ISGID)


def _is_shared(folder: Path) -> bool:
    """
    Return True if the owner has let a group write to `folder`. A folder to which all users can write, such as /tmp,
    does not count as shared.
    """
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWGRP) and not mode & stat.S_IWOTH


def _files_below(top: Path) -> Iterator[Path]:
    """
    Yield all files below a folder, apart from temporary ones. A folder that another process removes in the meantime
    counts as empty.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(top) as found:
        for item in found:
            if item.is_dir(follow_symlinks=False):
                yield from _files_below(Path(item.path))
            elif not item.name.startswith(_TEMPORARY):
                yield Path(item.path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
