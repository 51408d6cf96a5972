"""
Measures the training speed gained, while a checkpoint is sent, by an agent whose session has low priority
(agent/machine/cpu_priority.py).

    python -m benchmarks.cpu_priority [--rounds 15] [--seconds 3]

As many training processes as there are cores compute in a session of their own; an agent in another session uploads
images of 256 MB to a folder in memory without a pause. In each round three spans follow one another in a drawn order:
training alone, with an agent as it is, and with one of low priority. The output is the medians over the rounds, and the
range of the middle half. The threads that send are nice in both cases: the comparison is of the session.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.arguments import at_least
from spotrun.agent.machine.cpu_priority import CpuPriority
from spotrun.checkpoint.upload import discard, upload
from spotrun.store.local import LocalStore

IMAGE_BYTES = 256 << 20
STEP_BYTES = 1 << 20
MEMORY = "/dev/shm"  # noqa: S108
SETTLE_S = 0.5
"""Seconds to wait: the kernel applies a change of priority ten times a second."""
CONTEXT = multiprocessing.get_context("fork")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=15)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each span")
    options = parser.parse_args()
    rng, alone, usual, behind = random.Random(0), [], [], []
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, training() as steps:
        for _ in range(options.rounds):
            spans: list[tuple[list[tuple[float, float]], Callable[[], contextlib.AbstractContextManager[Any]]]] = [
                (alone, nobody),
                (usual, lambda: uploading(folder, behind=False)),
                (behind, lambda: uploading(folder, behind=True)),
            ]
            for found, beside in rng.sample(spans, len(spans)):
                found.append(span(steps, beside, options.seconds))
    tell("training with the agent as it is", [u[0] / a[0] for a, u in zip(alone, usual, strict=True)], "of alone")
    tell("training with the agent behind  ", [b[0] / a[0] for a, b in zip(alone, behind, strict=True)], "of alone")
    tell("training, behind by as it is    ", [b[0] / u[0] for u, b in zip(usual, behind, strict=True)], "x")
    tell("sent with the agent as it is    ", [u[1] for u in usual], "MB/s")
    tell("sent with the agent behind      ", [b[1] for b in behind], "MB/s")


def tell(what: str, figures: list[float], unit: str) -> None:
    low, _, high = quantiles(figures, n=4)
    print(f"{what}  {median(figures):.3f} {unit} ({low:.3f} to {high:.3f})")


def span(
    steps: Synchronized[int], beside: Callable[[], contextlib.AbstractContextManager[Any]], seconds: float
) -> tuple[float, float]:
    """Return steps a second, and the MB a second that the agent sent meanwhile."""
    with beside() as sent:
        while sent.value == 0:
            time.sleep(0.01)
        time.sleep(SETTLE_S)
        before, sent_before, began_s = steps.value, sent.value, time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - began_s
        return (steps.value - before) / took_s, (sent.value - sent_before) / 1e6 / took_s


@contextlib.contextmanager
def training() -> Iterator[Synchronized[int]]:
    steps: Synchronized[int] = CONTEXT.Value("q", 0)
    with running(lambda: train(steps)):
        yield steps


def train(steps: Synchronized[int]) -> None:
    """Train in this session, on each core, until it is killed."""
    for _ in range(len(os.sched_getaffinity(0)) - 1):
        if os.fork() == 0:
            break
    data = bytes(STEP_BYTES)
    while True:
        hashlib.sha256(data).digest()
        with steps.get_lock():
            steps.value += 1


@contextlib.contextmanager
def nobody() -> Iterator[Synchronized[int]]:
    yield CONTEXT.Value("q", 1)


@contextlib.contextmanager
def uploading(folder: str, *, behind: bool) -> Iterator[Synchronized[int]]:
    sent: Synchronized[int] = CONTEXT.Value("q", 0)
    with running(lambda: send(Path(folder), sent, behind=behind)):
        yield sent


def send(folder: Path, sent: Synchronized[int], *, behind: bool) -> None:
    """Send images until it is killed."""
    if behind:
        CpuPriority().stand_behind(True)
    store, image, already = LocalStore(folder), memoryview(os.urandom(1 << 20) * (IMAGE_BYTES >> 20)), 0

    def told(size_bytes: int) -> None:
        sent.value = already + size_bytes

    while True:
        upload(store, "image", image, {}, sent=told)
        discard(store, "image")
        already += IMAGE_BYTES


@contextlib.contextmanager
def running(act: Callable[[], None]) -> Iterator[None]:
    """Run `act` in a process and a session of its own, which end with the block."""
    process = CONTEXT.Process(target=lambda: (os.setsid(), act()), daemon=True)
    process.start()
    try:
        yield
    finally:
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.join()


if __name__ == "__main__":
    main()
