"""Processes of a measurement: none of them outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from spotrun.clouds.local.processes import die_with

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".peers"
WITHIN_S = 900.0


def python_path(*folders: Path) -> str:
    """Return a PYTHONPATH of these folders, and of those in our own."""
    own = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*map(str, folders), *([own] if own else [])])


@contextlib.contextmanager
def started(module: str, words: list[str], log: Path, *, peers: bool) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m module words`, with its peers to import if it needs them; it and its children end with the block."""
    environment: Mapping[str, str] = os.environ | {"PYTHONPATH": python_path(ROOT, *([PEERS] if peers else []))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()),
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Failed(Exception):
    """A process of a measurement ended with an error; the message has the end of its output."""


def wait_well(process: subprocess.Popen[bytes], log: Path) -> None:
    """
    Wait until it has ended.

    Raises:
        Failed: not with success, or not in time.
    """
    try:
        code = process.wait(WITHIN_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"still runs after {WITHIN_S:.0f} s:\n{tail(log)}") from None
    if code != 0:
        raise Failed(f"ended with {code}:\n{tail(log)}")


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:].strip()
