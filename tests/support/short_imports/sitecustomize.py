"""
With this folder in PYTHONPATH, a script starts with the imports of tests/support/jobs/fast_imports.py, and so does the
trainer of the checkpoint benchmark.

A Python imports this before the script's first line; spotrun's own `sitecustomize` runs it after itself.
"""

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    source = Path(__file__).parents[1] / "jobs" / "fast_imports.py"
    spec = importlib.util.spec_from_file_location("fast_imports", source)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


BENCHMARK = ["-m", "benchmarks.checkpoint.training"]

if sys.orig_argv[1:3] == BENCHMARK or (sys.orig_argv[1:2] and sys.orig_argv[1].endswith(".py")):
    main()
