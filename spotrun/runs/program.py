"""The word that starts spotrun in a shell here."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """
    Return `spotrun`, or the path of the one next to this Python if a shell would not find any: `.venv/bin/spotrun`. In
    `/`, where a runner in the background works, the path is absolute: a reader of its log is elsewhere.
    """
    beside = Path(sys.executable).with_name("spotrun")
    if shutil.which("spotrun") is not None or not beside.exists():
        return "spotrun"
    here = str(beside) if Path.cwd() == Path("/") else os.path.relpath(beside)
    return shlex.quote(min(str(beside), here, key=len))
