"""
Battery: the newest releases of the frameworks, in an environment of its own. Which private name has moved, and does the
contract of Framework hold?

    make battery NAME=newest
    .newest/bin/python -m tests.batteries.newest --look    what has moved in the packages of that Python

.newest is made of .venv, whose packages it sees behind its own: torch stays as it is locked.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv

from tests.batteries.moved_names import PACKAGES, moved
from tests.support.repository import ROOT

FOLDER = ROOT / ".newest"
PYTHON = FOLDER / "bin" / "python"
CONTRACT = "tests/contract/test_framework_contract.py"


def requirements() -> list[str]:
    """As pyproject.toml has them: a floor that is a candidate lets pip take candidates."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [line for lines in extras.values() for line in lines]
    return sorted(line for line in set(asked) if re.split(r"[^\w-]", line)[0] in PACKAGES)


def make() -> None:
    """.newest anew, with the newest release of each of PACKAGES."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    venv.create(FOLDER, with_pip=True)
    (site,) = FOLDER.glob("lib/python3.*/site-packages")
    mine = ROOT / ".venv" / site.relative_to(FOLDER)
    (site / "behind.pth").write_text(f"import site; site.addsitedir({str(mine)!r})\n")
    held = f"torch=={importlib.metadata.version('torch')}"
    install = [PYTHON, "-m", "pip", "install", "--quiet", "--upgrade", *requirements(), held]
    subprocess.run(install, check=True)


def look() -> int:
    """What this Python has, and what has moved in it."""
    for package in PACKAGES:
        print(f"{package} {importlib.metadata.version(package)}", flush=True)
    names = moved()
    print("\n".join(f"MOVED: {name}" for name in names) or "no private name has moved", flush=True)
    return int(bool(names))


def main() -> int:
    if "--look" in sys.argv:
        return look()
    make()
    os.environ["OMP_NUM_THREADS"] = "1"
    looked = subprocess.run([PYTHON, "-m", "tests.batteries.newest", "--look"], cwd=ROOT, check=False).returncode
    held = subprocess.run([PYTHON, "-m", "pytest", "-q", CONTRACT], cwd=ROOT, check=False).returncode
    print("the contract of Framework " + ("does not hold" if held else "holds"))
    return looked or held


if __name__ == "__main__":
    sys.exit(main())
