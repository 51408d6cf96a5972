"""
Builds a wheel from the files of the running spotrun, no matter how it was installed.

https://packaging.python.org/specifications
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import spotrun

PACKAGE = Path(spotrun.__file__).parent
NOT_PACKED = (".pyc", ".pyo")
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The modification time that each file has in the wheel. It is constant, so the same code gives the same wheel."""
_WHEEL = "Wheel-Version: 1.0\nGenerator: spotrun\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class Wheel(NamedTuple):
    name: str
    data: bytes


def own_wheel() -> Wheel:
    """Build a wheel of the running code, with the version number of the installed spotrun."""
    installed = distribution("spotrun")
    info = f"spotrun-{installed.version}.dist-info"
    contents = {f"spotrun/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes() for path in _files()}
    contents[f"{info}/METADATA"] = (installed.read_text("METADATA") or "").encode()
    contents[f"{info}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    contents[f"{info}/WHEEL"] = _WHEEL.encode()
    record = f"{info}/RECORD"
    contents[record] = "".join([*map(_line, contents.items()), f"{record},,\n"]).encode()
    return Wheel(f"spotrun-{installed.version}-py3-none-any.whl", _zipped(contents))


def _files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in NOT_PACKED)


def _line(item: tuple[str, bytes]) -> str:
    name, data = item
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def _zipped(contents: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _OLDEST), data, zipfile.ZIP_DEFLATED)
    return raw.getvalue()
