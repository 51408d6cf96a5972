"""Measures the peak memory of a process and all that it started."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil

LOOK_EVERY_S = 0.1


class PeakMemory:
    """
    Watches the processes below `pid` during the block; `peak_bytes` is the most they had together.

    Shared memory is counted once: the trainer and the uploading process both map the arenas, which are one memory.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.peak_bytes = max(self.peak_bytes, self._now_bytes())

    def _now_bytes(self) -> int:
        processes = [self._process, *self._process.children(recursive=True)]
        found = [memory for process in processes if (memory := memory_of(process.pid))]
        own = sum(memory["RssAnon"] + memory["RssFile"] for memory in found)
        return own + max((memory["RssShmem"] for memory in found), default=0)


def memory_of(pid: int) -> dict[str, int]:
    """Return its resident memory by kind, in bytes; nothing of a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.startswith("Rss"))
    return {name: int(value.split()[0]) << 10 for name, value in pairs}
