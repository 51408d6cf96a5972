"""
Packages of one line in an index of their own: what pip installs from where there is no network; and spotrun's own wheel
with other locks in it.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from spotrun.store.port import Store

WRONG = "0" * 64
"""No wheel has this digest."""


def small_wheel(
    index: Path, name: str, version: str = "1.0", needs: str = "", holds: Mapping[str, str] | None = None
) -> str:
    """The SHA-256 of a wheel that is now in `index`. It `holds` these files, or else a module."""
    path = index / name.replace("_", "-") / f"{name}-{version}-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    info = f"{name}-{version}.dist-info"
    metadata = [f"Name: {name}", f"Version: {version}", *([f"Requires-Dist: {needs}"] if needs else [])]
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (holds or {f"{name}.py": "VALUE = 1\n"}).items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *metadata, ""]))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "".join(f"{each},,\n" for each in (*archive.namelist(), f"{info}/RECORD")))
    (path.parent / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')
    return hashlib.sha256(path.read_bytes()).hexdigest()


def only_from(index: Path) -> Mapping[str, str]:
    """The variables with which pip finds packages nowhere else."""
    return {"PIP_INDEX_URL": index.as_uri(), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}


def change_wheel(store: Store, locks: Mapping[str, str], change: Callable[[str], str] = lambda text: text) -> None:
    """Put these texts into the wheel of a run's boot folder in place of its files of these names; `change` the rest."""
    (key,) = (each.key for each in store.list("boot/") if each.key.endswith(".whl"))
    raw = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(store.get(key))) as ours, zipfile.ZipFile(raw, "w") as altered:
        for name in ours.namelist():
            altered.writestr(name, locks[name] if name in locks else change(ours.read(name).decode()))
    store.put(key, raw.getvalue())
