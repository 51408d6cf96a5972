"""
The archive of the function that attends to nights: this very spotrun, with what it needs to launch and to look after
runs on AWS. PyTorch is not among that.

    make function          # or: python -m spotrun.clouds.aws.function_zip build/function.zip

It is made of what is installed here, so that the function is what was tested here. A package that was installed for a
newer Linux than that of Lambda is fetched by pip in the same version, and has to be one that the lock knows. Of
botocore the archive has the services that spotrun calls: all of them are 100 MB.

https://docs.aws.amazon.com/lambda/latest/dg/python-package.html
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spotrun.boot.wheel import own_wheel
from spotrun.clouds.nights import Function
from spotrun.errors import NotInstalled

SIZE_MAX_BYTES = 50 * 1000 * 1000
SERVICES = {
    *("ec2", "iam", "lambda", "pricing", "s3", "scheduler", "service-quotas", "ssm", "sts", "events"),
    "cloudformation",
}
PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Those of Lambda that spotrun knows too."""
GLIBC_MAX = (2, 34)
"""Amazon Linux 2023 has it; python3.11 of Lambda still has 2.26."""
GLIBC_OF_PYTHON_311 = (2, 26)
_NO_NEED = {"nvidia-ml-py"}
"""Nothing of it is called where no GPU is."""
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|tests?)/|\.(pyc|pyo|pyi|c|h|pxd)$|^\.\./|\.dist-info/(RECORD|INSTALLER|REQUESTED)$"
)
_OLDEST = (1980, 1, 1, 0, 0, 0)
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")
_OLDER_NAMES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def function_of_this_installation(*, portable: bool = True) -> Function:
    """
    Without `portable` it may run on this machine alone: nothing is fetched then.

    Raises:
        NotInstalled: a package is missing, or there is none of it that runs where the function does.
    """
    if sys.version_info[:2] not in PYTHONS:
        raise NotInstalled(
            f"AWS Lambda has no Python {platform.python_version()}", hint="use Python 3.11, 3.12 or 3.13"
        )
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, data in sorted(_contents(portable).items()):
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.external_attr = 0o644 << 16  # the function's user must be able to read it
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=6)
    size = raw.tell()
    if size > SIZE_MAX_BYTES:
        raise NotInstalled(f"the function would have {size / 1e6:.0f} MB", hint="install spotrun[aws] alone")
    return Function(raw.getvalue(), "python{}.{}".format(*sys.version_info), platform.machine())


def _contents(portable: bool) -> dict[str, bytes]:
    found = _unzipped(own_wheel().data)
    for each in _needed("spotrun", {"aws"}, set()):
        if portable and not _runs_there(each):
            found |= {name: data for name, data in _unzipped(_fetched(each)).items() if _belongs(name)}
            continue
        names = ((PurePosixPath(file).as_posix(), Path(str(file.locate()))) for file in each.files or ())
        found.update((name, path.read_bytes()) for name, path in names if _belongs(name))
    return found


def _unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}


def _belongs(name: str) -> bool:
    """Whether spotrun calls it: all but tests, headers, and the services of AWS that it does not know."""
    parts = PurePosixPath(name).parts
    is_called = parts[:2] != ("botocore", "data") or len(parts) == 3 or parts[2] in SERVICES
    return is_called and not _LEFT_OUT.search(name)


def _needed(name: str, extras: set[str], known: set[str]) -> Iterator[Distribution]:
    """What a package needs here, whatever that needs, and so on."""
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
            raise NotInstalled(f"{needed} is not installed", hint="pip install 'spotrun[aws]'") from None
        yield found
        yield from _needed(needed, set(wanted.extras), known)


def _runs_there(found: Distribution) -> bool:
    tags = re.findall(r"^Tag: \S+-(\S+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    return any(tag == "any" or (_glibc_of(tag) or (99, 0)) <= _glibc() for tag in tags)


def _glibc() -> tuple[int, int]:
    return GLIBC_OF_PYTHON_311 if sys.version_info[:2] == (3, 11) else GLIBC_MAX


def _fetched(found: Distribution) -> bytes:
    """
    The wheel of the same version for a Linux as old as Lambda's.

    Raises:
        NotInstalled: pip is missing or finds none, or it is none of the lock's.
    """
    wanted = f"{found.name}=={found.version}"
    newest = _glibc()
    platforms = [f"manylinux_2_{minor}_{platform.machine()}" for minor in range(17, newest[1] + 1)]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            folder,
        ]
        command += ["--python-version", "{}.{}".format(*sys.version_info)]
        command += [part for each in platforms for part in ("--platform", each)]
        done = subprocess.run([*command, wanted], capture_output=True, text=True)
        wheels = [*Path(folder).glob("*.whl")]
        if done.returncode or not wheels:
            why = (done.stderr.strip().splitlines() or ["nothing was fetched"])[-1]
            raise NotInstalled(
                f"{wanted} is installed for a newer Linux than that of AWS Lambda, and no other was found: {why}",
                hint="install the night with Python 3.12 or 3.13, whose Lambda is on a newer Linux",
            )
        data = wheels[0].read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    lock = files("spotrun.boot").joinpath("lock.txt").read_text()
    if wanted in lock and f"sha256:{digest}" not in lock:
        raise NotInstalled(f"{wheels[0].name} is not what the lock names: sha256 {digest}", hint="look at pip's index")
    return data


def _glibc_of(tag: str) -> tuple[int, int] | None:
    if found := _MANYLINUX.match(tag):
        return int(found[1]), int(found[2])
    return _OLDER_NAMES.get(tag.partition("_")[0])


def main(path: str) -> None:
    function = function_of_this_installation()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(function.data)
    print(f"{os.path.relpath(path)}: {len(function.data) / 1e6:.1f} MB, {function.python} on {function.machine}")


if __name__ == "__main__":
    main(sys.argv[1])
