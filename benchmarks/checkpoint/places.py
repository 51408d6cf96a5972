"""Places for the checkpoints of each measurement. They are deleted after it: a whole table writes 50 GB."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from spotrun.agent.machine.cpu_priority import CpuPriority
from tests.support.object_stores import RunningServer, SeaweedFS, running

Place = Callable[[], AbstractContextManager[str]]
"""Gives the address of an empty place, for a block."""


MEMORY = Path("/dev/shm")  # noqa: S108  the folders in it are new and of their owner alone
FOR_TRAINING_BYTES = 8e9


class Elsewhere(SeaweedFS):
    """
    Stands for a server on another machine, which takes nothing of this one: the memory that it writes to is there
    already.

    Files that grow take memory that the machine has yet to find, and training, which gives much memory back and takes
    it again in each step of its optimizer, waits for the same: on a virtual machine a tenth of its time, and more.
    """

    def command(self, folder: Path) -> list[str]:
        return [*super().command(folder), "-master.volumePreallocate"]


def is_bucket(store: str) -> bool:
    """Return whether `store` is no folder."""
    return not store or "://" in store


@contextlib.contextmanager
def places(store: str, room_gb: float) -> Iterator[Place]:
    """
    Yield places below `store`, an s3:// address or a folder; in a SeaweedFS of our own if that is empty, in memory if
    there is room for `room_gb`. While training computes, the server has the rest of the processor.
    """
    numbers = count(1)
    if not is_bucket(store):
        yield lambda: tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-", dir=store)
        return
    if store:
        yield lambda: _folder(f"{store.rstrip('/')}/checkpoint-benchmark-{os.getpid()}-{next(numbers)}")
        return
    in_memory = _memory_has(room_gb)
    with running(Elsewhere() if in_memory else SeaweedFS(), MEMORY if in_memory else None) as server:
        os.environ.update(server.environment)
        CpuPriority(Path(f"/proc/{server.process.pid}/autogroup")).stand_behind(True)
        yield partial(_bucket, server, numbers)


def _memory_has(room_gb: float) -> bool:
    if not MEMORY.is_dir():
        return False
    free = min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available - FOR_TRAINING_BYTES)
    return free >= room_gb * 1e9


@contextlib.contextmanager
def _folder(uri: str) -> Iterator[str]:
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    try:
        yield uri
    finally:
        _s3().Bucket(bucket).objects.filter(Prefix=f"{prefix}/").delete()


@contextlib.contextmanager
def _bucket(server: RunningServer, numbers: Iterator[int]) -> Iterator[str]:
    """A bucket of its own: only with one does SeaweedFS give its disk space back."""
    name = f"measurement-{next(numbers)}"
    server.server.make_bucket(name)
    try:
        with _folder(f"s3://{name}/run") as uri:
            yield uri
    finally:
        _s3().Bucket(name).delete()


def _s3() -> Any:
    import boto3

    return boto3.resource("s3")
