"""`spotrun metrics --listen` as a process, for what scrapes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def metrics_served(store: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of /metrics, and the process behind it, which is ended if it is still there."""
    command = [sys.executable, "-m", "spotrun", "metrics", "--store", store, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"serving (http://127\.0\.0\.1:\d+/metrics); Ctrl-C ends it\n", process.stdout.readline())
            assert found is not None
            yield found[1], process
        finally:
            process.kill()
