"""Locks on this machine, for work that only one process is allowed to do at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from spotrun.errors import SpotrunError

LOCKS = Path("~/.spotrun/locks")
"""Folder with the locks for runs whose store is a bucket, nightly runs included."""


def lock_of(name: str) -> Path:
    return LOCKS.expanduser() / f"{name}.lock"


@contextlib.contextmanager
def alone(path: Path, busy: SpotrunError) -> Iterator[None]:
    """
    Hold the lock at `path` in this block. The kernel frees it even if this process is killed.

    Raises:
        SpotrunError: another process on this machine holds the lock (the error is `busy`), or the lock file cannot be
            created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("ab")
    except OSError as error:
        raise SpotrunError(f"cannot lock {path}: {error.strerror}", hint="check who has write access there") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        yield
