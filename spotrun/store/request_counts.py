"""Counts this process's requests to buckets as clouds bill them: each retry of a request counts as another request."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple


class RequestCounts(NamedTuple):
    """
    Numbers of requests. `reads` are requests that get an object; `writes` are requests that put an object or list
    objects. Deletions are free, so they are not counted.
    """

    reads: int = 0
    writes: int = 0

    def since(self, before: RequestCounts) -> RequestCounts:
        return RequestCounts(self.reads - before.reads, self.writes - before.writes)


_lock = threading.Lock()
_asked = RequestCounts()


def asked() -> RequestCounts:
    return _asked


def count(request: Any, **_: object) -> None:
    """Count one request. botocore calls this function before each request to S3."""
    if request.method != "DELETE":
        is_read = request.method in ("GET", "HEAD") and "list-type=" not in request.url
        _add(reads=int(is_read), writes=int(not is_read))


def count_read() -> None:
    _add(reads=1)


def count_write() -> None:
    _add(writes=1)


def _add(reads: int = 0, writes: int = 0) -> None:
    global _asked
    with _lock:
        _asked = RequestCounts(_asked.reads + reads, _asked.writes + writes)
