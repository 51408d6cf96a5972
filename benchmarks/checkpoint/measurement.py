"""The measurement of one variant with one model, in seconds and bytes; and the same for peers, as plain trainers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.checkpoint.memory import PeakMemory
from benchmarks.checkpoint.plan import MEASURED, RESTORED, RESTORES, SAVED
from benchmarks.checkpoint.processes import started, wait_well

TRAINING = "benchmarks.checkpoint.training"


class Iteration(NamedTuple):
    """Seconds of one step, those of them that were not computing, and of those the processor time of its thread."""

    seconds: float
    rest_s: float
    rest_cpu_s: float


@dataclass(frozen=True)
class Measurement:
    """
    `saves` are (step, seconds until durable) while training went on, `paused` (seconds of waiting, seconds until
    durable) while it stood still. A restore took `restore_s` until the first batch, and `whole_s` until nothing was
    missing. `restored_identical`: to the bit. `begun` is of an instance that takes over, if one does. Of the work
    folder's files the first checkpoint sent `files_first_bytes`, and none of the later ones more than
    `files_later_bytes`.
    """

    state_bytes: int
    iterations: list[Iteration]
    saves: list[tuple[int, float]]
    paused: list[tuple[float, float]]
    peak_bytes: int
    restore_s: float | None = None
    whole_s: float | None = None
    restored_identical: bool | None = None
    begun: Begun | None = None
    files_first_bytes: int | None = None
    files_later_bytes: int | None = None


@dataclass(frozen=True)
class Begun:
    """A trainer process that resumes: seconds for its imports, for its network and data, and until its first batch."""

    imports_s: float
    build_s: float
    first_batch_s: float


def measure_peer(model: str, variant: str, folder: Path, uri: str) -> Measurement:
    """
    Train with it, then restore its last checkpoint, each time in a new process.

    Raises:
        Failed: it could not.
    """
    words = ["--model", model, "--variant", variant, "--to", uri, "--folder", str(folder)]
    log = folder / "log"
    with started(TRAINING, words, log, peers=True) as process, PeakMemory(process.pid) as memory:
        wait_well(process, log)
    measured, saved = read(folder / MEASURED), read(folder / SAVED)
    restored: list[dict[str, Any]] = []
    for _ in range(RESTORES if variant != "none" else 0):
        with started(TRAINING, [*words, "--restore"], log, peers=True) as process:
            wait_well(process, log)
        restored.append(read(folder / RESTORED))
    return Measurement(
        state_bytes=measured["state_bytes"],
        iterations=[Iteration(*one) for one in measured["iterations"]],
        saves=saved["saves"],
        paused=saved["paused"],
        peak_bytes=memory.peak_bytes,
        restore_s=median(one["seconds"] for one in restored) if restored else None,
        whole_s=median(one["whole_s"] for one in restored) if restored else None,
        restored_identical=all(one["digest"] == saved["digest"] for one in restored) if restored else None,
    )


def read(path: Path) -> Any:
    return json.loads(path.read_text())
