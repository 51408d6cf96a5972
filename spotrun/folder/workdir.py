"""
Stores the user's work folder as one object. The object's name contains the digest of the content, so equal folders need
only one object.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path, PurePosixPath

from spotrun.errors import SpotrunError
from spotrun.folder.travelling import travelling
from spotrun.store.port import Store


def key_of(sha256: str) -> str:
    return f"work/{sha256}.tar.gz"


def pack(folder: Path, runs: str = "") -> bytes:
    """
    Return the folder's plain files as a tar.gz that depends only on their names, modes and contents.

    travelling.py decides which files are left out. `runs` is the path of a store of runs; the files of that store are
    always left out.

    Raises:
        SpecInvalid: an ignore file cannot be read.
    """
    files = sorted(travelling(folder, runs).files)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in files:
            _add(archive, path, path.relative_to(folder).as_posix())
    return gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    data = path.read_bytes()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    archive.addfile(member, io.BytesIO(data))


def digest_of(folder: Path, runs: str) -> str:
    """Return the sha256 that `upload` returns for a folder."""
    return hashlib.sha256(pack(folder, runs)).hexdigest()


def upload(store: Store, folder: Path) -> str:
    """Pack a folder and store it under its sha256. Return the sha256."""
    data = pack(folder, store.uri.rpartition("/")[0])
    sha256 = hashlib.sha256(data).hexdigest()
    store.put(key_of(sha256), data)
    return sha256


def fetch(store: Store, sha256: str, folder: Path) -> None:
    """
    Unpack a stored work folder into `folder`.

    Raises:
        SpotrunError: the object's content does not match the digest in its name.
    """
    data = store.get(key_of(sha256))
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SpotrunError(f"work folder {sha256[:12]} is damaged in the store", hint="launch a new run")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            _extract(archive, member, folder)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """
    Extract one plain file to a path below `folder`, and refuse anything else. The checks are written out here, because
    the extraction filters of `tarfile` are missing in Debian's Python 3.11.2.
    """
    source = archive.extractfile(member) if member.isfile() else None
    path = PurePosixPath(member.name)
    if source is None or path.is_absolute() or ".." in path.parts:
        raise SpotrunError(
            f"the stored work folder contains {member.name!r}, which spotrun never packs", hint="launch a new run"
        )
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read())
    target.chmod(member.mode & 0o755)
