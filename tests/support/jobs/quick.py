"""tiny.py, started in less than half the time."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

JOBS = Path(__file__).parent
sys.path.insert(0, str(JOBS))

import fast_imports  # noqa: E402, F401

runpy.run_path(str(JOBS / "tiny.py"), run_name="__main__")
