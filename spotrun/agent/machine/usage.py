"""
Measures how much of the machine's processors, memory and GPUs is in use, and how long the training waits for data.

On your own machine, and on a cluster's node, other programs may run next to the training. Except for the processor time
of the run's own processes, the figures include these programs.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from spotrun.agent.machine import process_groups
from spotrun.folder.status_objects import Busy, Gpu, MachineUse, TrainingStatus, Usage
from spotrun.trainer_link import Progress

LOOKS_EVERY_S = 5.0
"""Seconds of system time between two reads of the machine."""
WINDOW_S = 60.0
"""Seconds of system time over which the share of time spent waiting for data is averaged."""
ENOUGH_S = 20.0
"""Minimum seconds of system time of training after which the share of waiting is meaningful."""
WORTH_TELLING = 0.30
"""Share of a training's time above which the agent reports that the training waits for data."""


class Machine:
    """
    Measures the use of this machine, from /proc/stat and /proc/meminfo (proc(5)). Time in which a processor waits for a
    disk or for the hypervisor does not count as busy. `own_cpu_s` returns the processor seconds that the run's own
    processes have used so far; by default, these are this process and its descendants.
    """

    def __init__(self, proc: Path = Path("/proc"), own_cpu_s: Callable[[], float] | None = None) -> None:
        self._proc = proc
        self._read_own_cpu_s = own_cpu_s or partial(process_groups.cpu_s, os.getpid())
        self._own_cpu_s = self._read_own_cpu_s()
        self._looked_s = float("-inf")
        self._times = self._read_times()
        self._newest: Usage | None = None
        self._trained = False
        self.used = MachineUse()
        """The sum of the use over all times in which a trainer trained, in system time."""

    def usage(self, gpus: tuple[Gpu, ...] = (), *, trains: bool = False) -> Usage | None:
        """
        Return the machine's use between the last two reads. If LOOKS_EVERY_S have passed since the last read, read
        again first. Return None before the second read, or if the machine reports no figures. `trains` is True while a
        trainer trains; only then is the use added to `used`.
        """
        now_s = time.monotonic()
        passed_s = now_s - self._looked_s
        if passed_s >= LOOKS_EVERY_S:
            self._looked_s = now_s
            self._newest = self._look(gpus)
            if trains and self._trained and self._newest is not None:
                self.used += used_in(passed_s, self._newest)
            self._trained = trains
        return self._newest

    def _look(self, gpus: tuple[Gpu, ...]) -> Usage | None:
        before, self._times = self._times, self._read_times()
        own_before_s, self._own_cpu_s = self._own_cpu_s, self._read_own_cpu_s()
        memory = self._read_memory()
        if before is None or self._times is None or memory is None:
            return None
        passed, computed = (now - then for now, then in zip(self._times, before, strict=True))
        if passed <= 0:
            return self._newest
        total_bytes, available_bytes = memory
        cpus, own_cpus = os.cpu_count() or 1, len(os.sched_getaffinity(0))
        own_possible_s = passed / os.sysconf("SC_CLK_TCK") / cpus * own_cpus
        return Usage(
            cpus=cpus,
            cpu_share=min(1.0, max(0.0, computed / passed)),
            memory_bytes=total_bytes,
            memory_used_bytes=max(0, total_bytes - available_bytes),
            own_cpus=own_cpus,
            own_cpu_share=min(1.0, max(0.0, (self._own_cpu_s - own_before_s) / own_possible_s)),
            gpus=gpus,
        )

    def _read_times(self) -> tuple[int, int] | None:
        """
        Return the processor time of all processors since boot, and the busy part of it, both in clock ticks; None if
        the machine reports no figures.
        """
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
        """
        Return the memory of the machine, and the part of it that is still available to programs, both in bytes; None if
        the machine reports no figures.
        """
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
        except OSError:
            return None
        known = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest}
        total, available = known.get("MemTotal"), known.get("MemAvailable")
        return None if total is None or available is None else (total, available)


def used_in(seconds: float, usage: Usage) -> MachineUse:
    """
    Return the machine's use over a time, assuming that it was always as busy as in `usage`.
    """
    gpu_used, gpu_bytes = usage.gpu_memory
    return MachineUse(
        cpu=_busy(seconds, usage.cpu_share),
        memory=_busy(seconds, _share(usage.memory_used_bytes, usage.memory_bytes)),
        gpu=_busy(seconds, usage.gpu_share),
        gpu_memory=_busy(seconds, _share(gpu_used, gpu_bytes)),
    )


def _share(used: int, there: int) -> float | None:
    return used / there if there else None


def _busy(seconds: float, share: float | None) -> Busy:
    return Busy() if share is None else Busy(busy_s=seconds * share, of_s=seconds)


class DataWait:
    """
    Measures the share of recent time in which a training waited for data, and keeps totals for the whole training. Time
    in validations is excluded from both.
    """

    def __init__(self) -> None:
        self._known: deque[tuple[float, float]] = deque()
        self._last: Progress | None = None
        self._told = False
        self.trained = TrainingStatus()
        """The totals of all training so far, in system time."""

    def new_trainer(self) -> None:
        """Drop the counts of the previous trainer, because a new trainer counts its waiting time from 0."""
        self._known.clear()

    def progressed(self, at: Progress, at_s: float) -> None:
        """Record the progress that the training reported at `at_s` (system time)."""
        known = self._known
        if at.phase != "train" or (known and at.data_s < known[-1][1]):
            known.clear()  # a validation or another fit() came in between
        if at.phase == "train":
            if known and self._last is not None:
                before_s, waited_s = known[-1]
                self.trained += TrainingStatus(
                    seconds=max(0.0, at_s - before_s),
                    waited_s=at.data_s - waited_s,
                    steps=max(0, at.step - self._last.step),
                    samples=_samples_since(self._last, at),
                )
            known.append((at_s, at.data_s))
            self._last = at
        while len(known) > 2 and known[-1][0] - known[1][0] >= WINDOW_S:
            known.popleft()

    @property
    def share(self) -> float | None:
        """The share of waiting; None until ENOUGH_S seconds of uninterrupted training were measured."""
        if not self._known:
            return None
        (began_s, before_s), (now_s, waited_s) = self._known[0], self._known[-1]
        if now_s - began_s < ENOUGH_S:
            return None
        return min(1.0, (waited_s - before_s) / (now_s - began_s))

    def news(self) -> str:
        """Return a note for the user if the training waits too much for data, but only once; otherwise ""."""
        share = self.share
        if self._told or share is None or share <= WORTH_TELLING:
            return ""
        self._told = True
        return (
            f"the training waits for its data {share:.0%} of the time: more workers of its DataLoader (num_workers) or "
            "more processors would make it faster, and a faster accelerator would not"
        )


def _samples_since(before: Progress, now: Progress) -> int:
    """
    Return the number of samples that were trained on between two reports. The counter starts again from 0 in each
    epoch. This loses no sample, because the training always reports the last batch of an epoch.
    """
    return max(0, now.samples - (before.samples if before.epoch == now.epoch else 0))
