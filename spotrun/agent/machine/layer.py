"""
Makes a run's virtual environment, based on the Python that executes this file: `python -I layer.py FOLDER`. The Python
may belong to a container, so this file needs only the standard library.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import venv
from importlib.util import find_spec
from pathlib import Path


def make(folder: Path) -> None:
    """
    Make the environment. If it exists, replace it. Its `pip` command runs the `pip` of the Python that runs this
    module. If that Python has no `pip`, install the `pip` that comes with Python's standard library.
    """
    shutil.rmtree(folder, ignore_errors=True)
    venv.EnvBuilder(symlinks=True, with_pip=find_spec("pip") is None).create(folder)
    lines = [f"import site; site.addsitedir({path!r})\n" for path in _own_site_folders()]
    (_site_folder(folder) / "base.pth").write_text("".join(lines))
    for name in ("pip", "pip3"):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{folder / "bin" / "python"}" -m pip "$@"\n')
        script.chmod(0o755)


def _own_site_folders() -> list[str]:
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for path in (*site.getsitepackages(), *users) if os.path.isdir(path)]


def _site_folder(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


if __name__ == "__main__":
    make(Path(sys.argv[1]))
