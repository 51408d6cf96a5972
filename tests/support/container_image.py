"""A container image of this machine's shell and Python, and packages of its environment. Nothing is pulled."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from spotrun.container.engine import Engine

PROGRAMS = (
    "sh", "bash", "cat", "chmod", "chown", "cp", "date", "dirname", "echo", "env", "id", "ln", "ls", "mkdir", "mv",
    "printf", "pwd", "readlink", "rm", "sed", "seq", "sleep", "sync", "tail", "touch", "true", "uname", "wc",
)  # fmt: skip
LEFT_OUT = {"test", "tests", "__pycache__", "site-packages", "idlelib", "tkinter", "include", "turtledemo"}
"""Of a Python."""
_LIBRARIES = ("c.so.6", "dl.so.2", "gcc_s.so.1", "m.so.6", "pthread.so.0", "rt.so.1", "stdc++.so.6")
RUNTIMES = [f"/lib/x86_64-linux-gnu/lib{name}" for name in _LIBRARIES]
"""What packages from elsewhere are linked with, and every image of Python has."""
TRAINING = ("torch", "pytorch-lightning", "numpy", "setuptools")
BASE = Path(sys.base_prefix)


def path_variable() -> str:
    return f"{BASE}/bin:/usr/bin:/bin"


def write_image(file: Path, packages: Sequence[str] = ()) -> None:
    """A tar of `/`, with Python where this machine has it, and these packages in it with all that they need."""
    inside = BASE / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = {path: path for path in _of_python()}
    for name in sorted(_with_needs(packages)):
        for entry in distribution(name).files or ():
            path = Path(str(entry.locate()))
            if path.suffix != ".pyc" and ".." not in entry.parts and path.is_file():
                found[inside / "site-packages" / str(entry)] = path
    programs = [Path(path) for name in PROGRAMS if (path := shutil.which(name)) is not None]
    found |= {Path("/usr/bin") / path.name: path for path in programs}
    shared = [path for path in found.values() if ".so" in path.name]
    found |= {path: path for path in _libraries([*programs, Path(os.path.realpath(sys.executable)), *shared])}
    with tarfile.open(file, "w") as tar:
        for folder in ("etc", "proc", "sys", "dev", "tmp", "root", "var/tmp", "run"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if "tmp" in folder else 0o755
            tar.addfile(entry)
        for name, target in (("bin", "usr/bin"), ("etc/mtab", "/proc/mounts")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, text in (("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("etc/group", "root:x:0:\n")):
            _add_text(tar, name, text)
        for inside_path, path in sorted(found.items()):
            tar.add(path.resolve(), str(inside_path).lstrip("/"), recursive=False, filter=_as_root)
        for name in ("python3", "python"):
            entry = tarfile.TarInfo(f"{BASE}/bin/{name}".lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, Path(os.path.realpath(sys.executable)).name
            tar.addfile(entry)


@contextlib.contextmanager
def imported(engine: Engine, packages: Sequence[str] = ()) -> Iterator[str]:
    """
    The name of such an image, by which the engine of this machine has it. It has to be podman: docker knows no digest
    of an image that was in no registry.
    """
    with tempfile.TemporaryDirectory(prefix="spotrun-image-") as name:
        file = Path(name, "image.tar")
        write_image(file, packages)
        image = f"localhost/spotrun-test-{os.getpid()}:1"
        said(engine, "import", "--change", f"ENV PATH={path_variable()}", str(file), image)
    try:
        yield image
    finally:
        said(engine, "rmi", "--force", image)


def said(engine: Engine, *arguments: str) -> str:
    done = subprocess.run([engine.path, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), 0o644
    tar.addfile(entry, io.BytesIO(text.encode()))


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _of_python() -> Iterator[Path]:
    yield Path(os.path.realpath(sys.executable))
    for folder, names, files in os.walk(BASE / "lib"):
        names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith("config-")]
        yield from (Path(folder, name) for name in files if not name.endswith((".a", ".pyc")))
    pip = BASE / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages" / "pip"
    yield from (path for path in pip.rglob("*.py") if path.is_file())


def _with_needs(packages: Iterable[str]) -> set[str]:
    found: set[str] = set()
    pending = list(packages)
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in found:
            continue
        found.add(name)
        needs = (Requirement(text) for text in distribution(name).requires or ())
        pending += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def _libraries(files: Sequence[Path]) -> set[Path]:
    """Of the system: what these files are linked with, at the paths by which the loader knows them."""
    found = {Path("/lib64/ld-linux-x86-64.so.2"), *map(Path, RUNTIMES)}
    for number in range(0, len(files), 100):
        done = subprocess.run(
            ["ldd", *map(str, files[number : number + 100])], capture_output=True, text=True, check=False
        )
        found |= {Path(path) for path in re.findall(r"=> (/(?:lib|usr/lib)\S+)", done.stdout)}
    return found
