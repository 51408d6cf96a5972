"""
Packs the changes that a command made to folders into an archive. If another machine has the same folders as they were
before the command, unpacking the archive there makes the same changes.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from spotrun.errors import SpotrunError
from spotrun.folder.setup_cache import SetupUnusable
from spotrun.folder.work_files import Stamp, tree
from spotrun.run.bounds import OutOfBounds, decode

FACTS = "pack.json"
_FACTS_MAX_BYTES = 16 << 20


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """
    The changes that a command made: the paths of the files, links and folders that it wrote or removed. The paths are
    relative to `made_in`, the folder in which the command ran.
    """

    made_in: str
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.written or self.removed)


def survey(root: Path, folders: Sequence[str]) -> dict[str, Stamp]:
    """
    Return the stamp (size, times and mode) of each file, link and folder below the `folders` in `root`, keyed by its
    path relative to `root`. Two surveys show what has changed between them.
    """
    found = {}
    for path, facts in (each for name in folders for each in tree(str(root), name)):
        if isinstance(facts, OSError):
            raise facts
        if stat.S_ISDIR(facts.st_mode):  # a folder's times and size change with its contents, which are listed anyway
            found[path] = Stamp(0, 0, 0, 0, facts.st_mode)
        elif stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode):
            found[path] = Stamp.of(facts)
    return found


def between(root: Path, before: dict[str, Stamp], after: dict[str, Stamp]) -> Diff:
    written = sorted(name for name, stamp in after.items() if before.get(name) != stamp)
    return Diff(made_in=str(root), written=tuple(written), removed=tuple(sorted(set(before) - set(after))))


def pack(diff: Diff, archive: Path) -> None:
    """
    Write the changes into a tar file. It is not compressed, because an upload to the bucket is faster than compression.
    """
    root = Path(diff.made_in)
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        facts = msgspec.json.encode(msgspec.structs.replace(diff, written=()))
        tar.addfile(_member(FACTS, 0o644, len(facts)), io.BytesIO(facts))
        for name in diff.written:
            _add(tar, root / name, name)


def _member(
    name: str, mode: int, size_bytes: int = 0, mtime_s: int = 0, kind: bytes = tarfile.REGTYPE
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.size, member.mtime, member.type = mode, size_bytes, mtime_s, kind
    return member


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    facts = path.lstat()
    mtime_s = int(facts.st_mtime)  # a compiled Python file contains its source's time in whole seconds
    if path.is_symlink():
        link = _member(name, 0o777, mtime_s=mtime_s, kind=tarfile.SYMTYPE)
        link.linkname = os.readlink(path)
        tar.addfile(link)
    elif path.is_dir():
        tar.addfile(_member(name, facts.st_mode & 0o777, kind=tarfile.DIRTYPE))
    else:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            tar.addfile(_member(name, facts.st_mode & 0o777, size_bytes, mtime_s), file)


def unpack(archive: Path, root: Path, folders: Sequence[str]) -> Diff:
    """
    Apply the changes in `archive` to the `folders` in `root`. If this raises an error, some of the changes may have
    been made.

    Raises:
        SetupUnusable: the archive was not made by `pack`.
        SpotrunError: this machine cannot write the files.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            diff = _facts(tar)
            for name in diff.removed:
                _remove(_inside(root, name, folders))
            for member in tar:
                if member.issym():
                    member.linkname = member.linkname.replace(diff.made_in, str(root), 1)
                if member.name != FACTS:
                    _extract(tar, member, _inside(root, member.name, folders))
    except (tarfile.TarError, OutOfBounds) as error:
        raise SetupUnusable(f"the archive cannot be read: {error}") from error
    except OSError as error:
        raise SpotrunError(f"the archive cannot be unpacked: {error}") from error
    return diff


def _facts(tar: tarfile.TarFile) -> Diff:
    first = tar.next()
    source = tar.extractfile(first) if first is not None and first.name == FACTS and first.isfile() else None
    if source is None:
        raise SetupUnusable(f"the archive does not begin with {FACTS}")
    return decode(source.read(_FACTS_MAX_BYTES), Diff)


def _inside(root: Path, name: str, folders: Sequence[str]) -> Path:
    parts = PurePosixPath(name).parts
    if len(parts) < 2 or parts[0] not in folders or ".." in parts:
        raise SetupUnusable(f"the archive contains {name!r}, which is outside of the run's folders")
    target = root / name
    if not Path(os.path.realpath(target.parent)).is_relative_to(os.path.realpath(root)):
        raise SetupUnusable(f"the archive would write {name!r} through a link that leads out of the run's folders")
    return target


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Extract one member without tarfile's extraction filters, which Debian's Python 3.11.2 lacks."""
    if member.isdir():
        if target.is_symlink() or not target.is_dir():
            _remove(target)
        target.mkdir(parents=True, exist_ok=True)
        target.chmod(member.mode & 0o777)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove(target)
    if member.issym():
        target.symlink_to(member.linkname)
        return
    source = tar.extractfile(member) if member.isfile() else None
    if source is None:
        raise SetupUnusable(f"the archive contains {member.name!r}, which is not a file, folder or link")
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    target.chmod(member.mode & 0o777)
    os.utime(target, (member.mtime, member.mtime))
