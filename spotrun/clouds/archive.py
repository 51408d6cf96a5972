"""
Builds the archive of a cloud function: spotrun and the packages that it needs there, without PyTorch.

The archive contains the same versions of the packages that are installed on this machine. If an installed package was
built for a newer Linux than the function runs on, pip fetches another build of the same version. spotrun's lock file
must list the digest of that build.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import platform
import re
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spotrun.boot.wheel import own_wheel
from spotrun.clouds.nights import Function
from spotrun.errors import NotInstalled

Glibc = tuple[int, int]
_NO_NEED = {"nvidia-ml-py"}
"""Packages that a machine without a GPU does not use."""
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|tests?)/|\.(pyc|pyo|pyi|c|h|pxd)$|^\.\./|\.dist-info/(RECORD|INSTALLER|REQUESTED)$"
)
_OLDEST = (1980, 1, 1, 0, 0, 0)
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")
_OLDER_NAMES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def _whatever(_: str) -> bool:
    return True


class FunctionRuntime(NamedTuple):
    """
    A cloud service that runs an archive as a function. `extra` names the spotrun extra that the service needs.
    `glibc_of` maps each Python version that the service offers to the glibc version of its Linux.

    `calls` gets the name of each file in a package. If it returns False, the cloud function never reads the file, and
    the archive leaves it out. If `compiled` is True, the archive also contains the modules' bytecode, so
    that the function starts faster.
    """

    name: str
    extra: str
    glibc_of: dict[tuple[int, int], Glibc]
    size_max_bytes: int
    calls: Callable[[str], bool] = _whatever
    compiled: bool = False

    @property
    def glibc(self) -> Glibc:
        """
        The glibc version that the service uses for the Python version on this machine. Raises NotInstalled if the
        service does not offer this Python version.
        """
        known = self.glibc_of.get(sys.version_info[:2])
        if known is None:
            names = " or ".join("{}.{}".format(*each) for each in self.glibc_of)
            raise NotInstalled(
                f"{self.name} does not offer Python {platform.python_version()}", hint=f"use Python {names}"
            )
        return known


def archive_for(place: FunctionRuntime, *, portable: bool = True) -> Function:
    """
    Build the archive for `place`. If `portable` is false, no packages are fetched for the service's Linux, so the
    archive may run only on this machine.

    Raises:
        NotInstalled: a package is missing, or has no build for the service's Linux.
    """
    glibc = place.glibc  # needed even if not portable: `place` must offer this Python version
    contents = _contents(place, glibc if portable else None)
    if place.compiled:
        contents |= _bytecode(contents)
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, data in sorted(contents.items()):
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.external_attr = 0o644 << 16  # readable for the user that runs the function
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=6)
    size = raw.tell()
    if size > place.size_max_bytes:
        raise NotInstalled(
            f"the function is too large: {size / 1e6:.0f} MB; {place.name} allows {place.size_max_bytes / 1e6:.0f} MB",
            hint=f"install only spotrun[{place.extra}]",
        )
    return Function(raw.getvalue(), "python{}.{}".format(*sys.version_info), platform.machine())


def _contents(place: FunctionRuntime, glibc: Glibc | None) -> dict[str, bytes]:
    def belongs(name: str) -> bool:
        return place.calls(name) and not _LEFT_OUT.search(name)

    found = _unzipped(own_wheel().data)
    for each in _needed(place, "spotrun", {place.extra}, set()):
        if glibc is not None and not _runs_there(each, glibc):
            fetched = _unzipped(_fetched(each, place, glibc))
            found |= {name: data for name, data in fetched.items() if belongs(name)}
            continue
        names = ((PurePosixPath(file).as_posix(), Path(str(file.locate()))) for file in each.files or ())
        found.update((name, path.read_bytes()) for name, path in names if belongs(name))
    return found


_UNCHECKED = 1
"""
The flags of a bytecode file that contains its source's hash instead of its source's date. With these flags, Python runs
the bytecode without checking the hash.
"""
_MARSHAL_WITHOUT_REFERENCES = 2
"""
A version of the marshal format that does not mark objects which occur more than once. Newer versions mark such objects.
But the marks depend on other objects in the process, so two builds of the same code would differ.
"""


def _bytecode(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """
    Return the modules' bytecode for the running Python version (https://peps.python.org/pep-0552). Files
    that do not compile, such as templates, are skipped. The bytecode names its source file by the path in the archive.
    On import, Python replaces this path with the real one.
    """
    head = MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little")
    found = {}
    for name, source in contents.items():
        path = PurePosixPath(name)
        if path.suffix != ".py":
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about packages' code, which we cannot correct
            try:
                code = compile(source, name, "exec", dont_inherit=True, optimize=0)
            except (SyntaxError, ValueError):
                continue
        compiled = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
        data = marshal.dumps(code, _MARSHAL_WITHOUT_REFERENCES)
        found[compiled.as_posix()] = head + source_hash(source) + data
    return found


def _unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}


def _needed(place: FunctionRuntime, name: str, extras: set[str], known: set[str]) -> Iterator[Distribution]:
    """Yield the packages on this machine that the package `name` requires, directly or indirectly."""
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        needed = canonicalize_name(wanted.name)
        applies = wanted.marker is None or any(wanted.marker.evaluate({"extra": each}) for each in extras or {""})
        if not applies or needed in known | _NO_NEED:
            continue
        known.add(needed)
        try:
            found = distribution(needed)
        except PackageNotFoundError:
            raise NotInstalled(f"{needed} is not installed", hint=f"pip install 'spotrun[{place.extra}]'") from None
        yield found
        yield from _needed(place, needed, set(wanted.extras), known)


def _runs_there(found: Distribution, glibc: Glibc) -> bool:
    tags = re.findall(r"^Tag: \S+-(\S+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    return any(tag == "any" or (glibc_of(tag) or (99, 0)) <= glibc for tag in tags)


def _fetched(found: Distribution, place: FunctionRuntime, glibc: Glibc) -> bytes:
    """
    Fetch a wheel of the same version that runs on the service's older Linux.

    Raises:
        NotInstalled: pip is missing or finds no such wheel, or the lock does not list the wheel.
    """
    wanted = f"{found.name}=={found.version}"
    platforms = [f"manylinux_2_{minor}_{platform.machine()}" for minor in range(17, glibc[1] + 1)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--dest", folder, "--python-version", "{}.{}".format(*sys.version_info)]
        command += [part for each in platforms for part in ("--platform", each)]
        done = subprocess.run([*command, wanted], capture_output=True, text=True)
        wheels = [*Path(folder).glob("*.whl")]
        if done.returncode or not wheels:
            why = (done.stderr.strip().splitlines() or ["nothing was fetched"])[-1]
            newer = " or ".join("{}.{}".format(*each) for each, there in place.glibc_of.items() if there > glibc)
            raise NotInstalled(
                f"the installed {wanted} needs a newer Linux than {place.name} has; pip found no other build: {why}",
                hint=f"install the night with Python {newer}: the service runs it on a newer Linux" if newer else None,
            )
        data = wheels[0].read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    lock = files("spotrun.boot").joinpath("lock.txt").read_text()
    if wanted in lock and f"sha256:{digest}" not in lock:
        raise NotInstalled(
            f"pip fetched {wheels[0].name}, which is not in spotrun's lock file: sha256 {digest}",
            hint="check which index pip uses",
        )
    return data


def glibc_of(tag: str) -> Glibc | None:
    """Return the glibc that a wheel's platform tag requires; None if the tag requires no glibc."""
    if found := _MANYLINUX.match(tag):
        return int(found[1]), int(found[2])
    return _OLDER_NAMES.get(tag.partition("_")[0])
