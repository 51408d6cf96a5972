"""Packages of one line in an index of their own: what pip installs from where there is no network."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

WRONG = "0" * 64
"""No wheel has this digest."""


def small_wheel(index: Path, name: str, version: str = "1.0", needs: str = "") -> str:
    """The SHA-256 of a wheel that is now in `index`."""
    path = index / name.replace("_", "-") / f"{name}-{version}-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    info = f"{name}-{version}.dist-info"
    metadata = [f"Name: {name}", f"Version: {version}", *([f"Requires-Dist: {needs}"] if needs else [])]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 1\n")
        archive.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *metadata, ""]))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "".join(f"{each},,\n" for each in (*archive.namelist(), f"{info}/RECORD")))
    (path.parent / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')
    return hashlib.sha256(path.read_bytes()).hexdigest()


def only_from(index: Path) -> Mapping[str, str]:
    """The variables with which pip finds packages nowhere else."""
    return {"PIP_INDEX_URL": index.as_uri(), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
