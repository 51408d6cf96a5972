"""
Connects Unix sockets at a path of any length.

A socket's address has at most 107 bytes on Linux (unix(7)), and the path of an instance's folder may be longer. So this
module opens the socket's folder, and the address names the open descriptor instead of the path.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

BACKLOG = 64
FOR_ITS_USER_ALONE = 0o600
_TIME = struct.Struct("@ll")
"""A send timeout as (seconds, microseconds); with zero, a call waits forever (socket(7))."""


def listen(path: str) -> socket.socket:
    """
    Return a listening socket at `path`, which must not exist yet. Its permissions are set before it listens, so
    processes of other users can never connect.

    Raises:
        OSError: `path` exists, or the file system does not support sockets.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            sock.bind(address)
        os.chmod(path, FOR_ITS_USER_ALONE)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def connect(path: str, within_s: float) -> socket.socket:
    """
    Connect to the socket at `path`.

    Raises:
        OSError: no process listens at `path`, or this user has no permission to connect.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # With `settimeout`, connect(2) would fail immediately (EAGAIN) while many other processes connect. This option
        # makes it wait instead.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(int(within_s), 0))
        with _short(path) as address:
            sock.connect(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(0, 0))
    except OSError:
        sock.close()
        raise
    return sock


@contextmanager
def _short(path: str) -> Iterator[str]:
    folder, name = os.path.split(path)
    descriptor = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
