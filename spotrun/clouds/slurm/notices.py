"""
Slurm's notice: when Slurm is about to take a job's nodes, it sends SIGTERM to the job's steps, and ends the job after
the partition's GraceTime.

All processes of a step get the signal (https://slurm.schedmd.com/preempt.html). If the training ran in a step, the
signal would end its data loader workers. Processes that the batch script itself starts do not get the signal. So the
batch script runs the agent and the training. A separate step runs only a listener (spotrun.clouds.slurm.listener),
which writes the notice into a file in the instance's folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import time

from spotrun.clock import Clock
from spotrun.clouds.notices import Blind, Notice
from spotrun.store.atomic_write import write_atomically

FILE = "slurm-notice.json"
BEAT_S = 5.0
"""Seconds between two updates of the file's modification time, by which the listener shows that it is alive."""
DEAF_AFTER_S = 12 * BEAT_S


class ListenerNotices:
    """
    A notice source that reads the listener's file. If the listener has not updated the file for DEAF_AFTER_S, it is
    probably dead, and `notices` raises Blind.
    """

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock

    def notices(self) -> Iterator[Notice]:
        try:
            deadline = read(self._file)
            silent_s = time() - self._file.stat().st_mtime
        except (OSError, ValueError) as error:
            raise Blind(f"no step of this job is listening for Slurm's signal: {error}") from error
        if deadline is not None:
            left_s = (deadline - self._clock.now()).total_seconds()
            yield Notice("termination", deadline, self._clock.monotonic() + left_s)
        elif silent_s > DEAF_AFTER_S:
            raise Blind(f"the step that listens for Slurm's signal has been silent for {silent_s:.0f} s")


def slurm_notices(environment: Mapping[str, str], clock: Clock) -> list[ListenerNotices]:
    return [ListenerNotices(Path(environment.get("SPOTRUN_INSTANCE_DIR", "/nonexistent")) / FILE, clock)]


def read(file: Path) -> datetime | None:
    """Return the time at which the instance will end; None if there was no notice."""
    deadline = json.loads(file.read_text())["deadline_at"]
    return None if deadline is None else datetime.fromtimestamp(float(deadline), UTC)


def write(file: Path, deadline: datetime | None) -> None:
    told = {"deadline_at": None if deadline is None else deadline.timestamp()}
    write_atomically(file, json.dumps(told).encode())
