"""
Slurm's notice: SIGTERM to the steps of a job, followed by the time that the partition's GraceTime leaves.

https://slurm.schedmd.com/preempt.html. Each process of a step gets the signal, including a data loader's workers, which
the signal would end. The batch script's own processes do not get it. So agent and training run in the batch script, and
a step next to them runs only a listener (spotrun.clouds.slurm.listener). The listener writes the notice into a file in
the instance's folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import time

from spotrun.clock import Clock
from spotrun.clouds.notices import Blind, Notice

FILE = "slurm-notice.json"
BEAT_S = 5.0
"""Seconds between two touches of the file while the listener has received no signal."""
DEAF_AFTER_S = 12 * BEAT_S


class ListenerNotices:
    """
    The notices that the listener writes. If the file was not touched for DEAF_AFTER_S, the source counts as not
    answering.
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
    """Return when the instance will end; None if there was no notice."""
    deadline = json.loads(file.read_text())["deadline_at"]
    return None if deadline is None else datetime.fromtimestamp(float(deadline), UTC)


def write(file: Path, deadline: datetime | None) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps({"deadline_at": None if deadline is None else deadline.timestamp()}))
    temporary.replace(file)
