"""Finds the command that starts spotrun in this user's shell."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """
    Return the command that starts spotrun in the user's shell. This is `spotrun` if the shell finds a program of this
    name. Otherwise it is the path of the program next to this Python, such as `.venv/bin/spotrun`. In a background
    runner, whose working folder is `/`, the path is absolute.
    """
    beside = Path(sys.executable).with_name("spotrun")
    if shutil.which("spotrun") is not None or not beside.exists():
        return "spotrun"
    here = str(beside) if Path.cwd() == Path("/") else os.path.relpath(beside)
    return shlex.quote(min(str(beside), here, key=len))
