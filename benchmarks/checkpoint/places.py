"""Where the checkpoints of each measurement go. They are deleted after it: a whole table writes 50 GB."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from spotrun.agent.precedence import Precedence
from tests.object_stores import RunningServer, SeaweedFS, running

Place = Callable[[], AbstractContextManager[str]]
"""Gives the address of an empty place, for a block."""


@contextlib.contextmanager
def places(store: str) -> Iterator[Place]:
    """
    Below `store`, an s3:// address; in a SeaweedFS of our own where that is empty. It stands for a server on another
    machine, so while training computes it has what that leaves of the processor.
    """
    numbers = count(1)
    if store:
        yield lambda: _folder(f"{store.rstrip('/')}/checkpoint-benchmark-{os.getpid()}-{next(numbers)}")
        return
    with running(SeaweedFS()) as server:
        os.environ.update(server.environment)
        Precedence(Path(f"/proc/{server.process.pid}/autogroup")).stand_behind(True)
        yield partial(_bucket, server, numbers)


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
