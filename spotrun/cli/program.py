"""What a shell here starts spotrun by."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """`spotrun`, or the path of the one beside this Python if a shell would not find any: `.venv/bin/spotrun`."""
    beside = Path(sys.executable).with_name("spotrun")
    if shutil.which("spotrun") is not None or not beside.exists():
        return "spotrun"
    return shlex.quote(min(str(beside), os.path.relpath(beside), key=len))
