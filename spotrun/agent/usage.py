"""
What a training needs of its machine: processors, memory, and how long it waits for its data.

The figures are those of the whole machine, which a training has for itself on every cloud but the local one.
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

from spotrun.folder.status_objects import Usage
from spotrun.trainer_link import Progress

LOOKS_EVERY_S = 5.0
"""System time between two looks at the machine."""
WINDOW_S = 60.0
"""System time over which the waiting for data is averaged."""
ENOUGH_S = 20.0
"""System time of training before its share means anything."""
WORTH_TELLING = 0.30
"""The share of its time that a training waits for its data from which on that is told."""


class Machine:
    """
    How busy this machine is: /proc/stat and /proc/meminfo, proc(5). What waits for a disk or a hypervisor does not
    compute.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._looked_s = float("-inf")
        self._times = self._read_times()
        self._newest: Usage | None = None

    def usage(self) -> Usage | None:
        """Since the look before; None before there was one, and on a machine that does not tell."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOKS_EVERY_S:
            self._looked_s = now_s
            self._newest = self._look()
        return self._newest

    def _look(self) -> Usage | None:
        before, self._times = self._times, self._read_times()
        memory = self._read_memory()
        if before is None or self._times is None or memory is None:
            return None
        passed, computed = (now - then for now, then in zip(self._times, before, strict=True))
        if passed <= 0:
            return self._newest
        total_bytes, available_bytes = memory
        return Usage(
            cpus=os.cpu_count() or 1,
            cpu_share=min(1.0, max(0.0, computed / passed)),
            memory_bytes=total_bytes,
            memory_used_bytes=max(0, total_bytes - available_bytes),
        )

    def _read_times(self) -> tuple[int, int] | None:
        """Of all processors: ticks that have passed, and those in which one computed."""
        try:
            first = (self._proc / "stat").read_text().split("\n", 1)[0].split()
        except OSError:
            return None
        if len(first) < 9 or first[0] != "cpu":
            return None
        user, nice, system, idle, waits, interrupts, soft, stolen = map(int, first[1:9])
        computed = user + nice + system + interrupts + soft
        return computed + idle + waits + stolen, computed

    def _read_memory(self) -> tuple[int, int] | None:
        """Bytes that there are, and that a program could still have."""
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
        except OSError:
            return None
        known = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest}
        total, available = known.get("MemTotal"), known.get("MemAvailable")
        return None if total is None or available is None else (total, available)


class DataWait:
    """For which share of its time a training has waited for its data lately, validations left out."""

    def __init__(self) -> None:
        self._known: deque[tuple[float, float]] = deque()
        self._told = False

    def progressed(self, at: Progress, at_s: float) -> None:
        """`at_s` is system time."""
        known = self._known
        if at.phase != "train" or (known and at.data_s < known[-1][1]):
            known.clear()  # a validation, or another process
        if at.phase == "train":
            known.append((at_s, at.data_s))
        while len(known) > 2 and known[-1][0] - known[1][0] >= WINDOW_S:
            known.popleft()

    @property
    def share(self) -> float | None:
        """None as long as too little was trained in one piece."""
        if not self._known:
            return None
        (began_s, before_s), (now_s, waited_s) = self._known[0], self._known[-1]
        if now_s - began_s < ENOUGH_S:
            return None
        return min(1.0, (waited_s - before_s) / (now_s - began_s))

    def news(self) -> str:
        """What to tell a person, once; "" otherwise."""
        share = self.share
        if self._told or share is None or share <= WORTH_TELLING:
            return ""
        self._told = True
        return (
            f"the training waits for its data {share:.0%} of the time: more workers of its DataLoader (num_workers) or "
            "more processors would make it faster, and a faster accelerator would not"
        )
