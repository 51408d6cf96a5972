"""
Builds the wheel and the source distribution of a commit, into the same bytes whenever, wherever and by whomever.

    python -m tests.support.dist FOLDER [COMMIT]      # or: make dist

They hold what git has of the commit, in modes and with a time that do not depend on the machine, and its name in
spotrun/commit.txt. What else could differ is the compressor: the versions of Python, setuptools and zlib.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.support.repository import ROOT

COMMIT_FILE = "spotrun/commit.txt"
BUILD = """
import sys
from setuptools import build_meta
folder = sys.argv[1]
build_meta.build_sdist(folder)
build_meta.build_wheel(folder)
"""


def main(folder: Path, commit: str = "HEAD") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for built in dist(folder, commit):
        print(f"{hashlib.sha256(built.read_bytes()).hexdigest()}  {built}")


def dist(folder: Path, commit: str = "HEAD", repository: Path = ROOT) -> list[Path]:
    """Put both into a folder, and return them."""
    name, made_at = _git(repository, "log", "-1", "--format=%H %ct", commit).decode().split()
    with tempfile.TemporaryDirectory() as place:
        source, built = Path(place, "spotrun"), Path(place, "built")
        built.mkdir()
        with tarfile.open(fileobj=io.BytesIO(_git(repository, "archive", "--format=tar", name))) as archive:
            archive.extractall(source, filter="data")
        (source / COMMIT_FILE).write_text(f"{name}\n")
        environment = {**os.environ, "SOURCE_DATE_EPOCH": made_at, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", BUILD, str(built)]
        done = subprocess.run(command, cwd=source, env=environment, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return [_settled(path, folder / path.name, int(made_at)) for path in sorted(built.iterdir())]


def _git(repository: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True).stdout


def _settled(built: Path, target: Path, made_at: int) -> Path:
    target.write_bytes(_wheel(built) if built.suffix == ".whl" else _sdist(built, made_at))
    return target


def _wheel(built: Path) -> bytes:
    """The members of a wheel in their order, each of which everybody may read."""
    raw = io.BytesIO()
    with zipfile.ZipFile(built) as before, zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as after:
        for info in before.infolist():
            info.external_attr = 0o100644 << 16
            after.writestr(info, before.read(info), zipfile.ZIP_DEFLATED)
    return raw.getvalue()


def _sdist(built: Path, made_at: int) -> bytes:
    """The members of a source distribution by their names, owned by nobody in particular."""
    raw = io.BytesIO()
    with tarfile.open(built) as before, tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as after:
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            same = tarfile.TarInfo(member.name)
            same.size, same.type, same.mtime = member.size, member.type, made_at
            same.mode = 0o755 if member.isdir() else 0o644
            after.addfile(same, before.extractfile(member) if member.isfile() else None)
    return gzip.compress(raw.getvalue(), mtime=made_at)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
