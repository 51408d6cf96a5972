"""tiny.py, started in less than half the time."""

from __future__ import annotations

import runpy
from pathlib import Path

import fast_imports  # noqa: F401

runpy.run_path(str(Path(__file__).with_name("tiny.py")), run_name="__main__")
