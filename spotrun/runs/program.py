"""What a shell here starts spotrun by."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """
    `spotrun`, or the path of the one beside this Python if a shell would not find any: `.venv/bin/spotrun`. A runner in
    the background works in `/`, and whoever reads its log does not.
    """
    beside = Path(sys.executable).with_name("spotrun")
    if shutil.which("spotrun") is not None or not beside.exists():
        return "spotrun"
    here = str(beside) if Path.cwd() == Path("/") else os.path.relpath(beside)
    return shlex.quote(min(str(beside), here, key=len))
