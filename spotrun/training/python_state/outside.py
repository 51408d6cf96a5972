"""Inspects objects that are partly outside this process: files, pipes, connections, processes."""

from __future__ import annotations

import fcntl
import io
import os
import socket
import stat
import struct
import termios
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import Popen
from typing import Any

UNKNOWN = "a connection whose traffic is not counted"
_OUTSIDE = (io.IOBase, socket.socket, Popen, BaseProcess)
_STANDARD = 2
"""
The highest descriptor of the standard streams, stderr. Use of the standard streams is not compared, because every
process may print.
"""
_TCP_COUNTS = struct.Struct("@120x2Q")
"""Fields of Linux's `struct tcp_info`: bytes acknowledged, and bytes received."""


def is_outside(cls: type) -> bool:
    return issubclass(cls, _OUTSIDE) or _is_connection(cls)


def seen_of(value: Any, work: str) -> Any:
    """
    Return a value that changes each time the object is used: the position in a file, the CPU time of a process, or the
    bytes that a connection has carried. Return `UNKNOWN` if the uses of the object cannot be counted.

    Return None if the object is closed or has no such value. Also return None for a file that is open for writing below
    the folder `work`, because checkpoints include this file and its position.
    """
    cls = type(value)
    if issubclass(cls, io.IOBase):
        return _position(value, work)
    if issubclass(cls, socket.socket):
        return _traffic(value)
    if issubclass(cls, Popen | BaseProcess):
        return _time_used(value)
    handle = vars(value).get("_handle")
    return None if handle is None else _of_pipe(handle)


def _is_connection(cls: type) -> bool:
    return cls.__module__ == "multiprocessing.connection" and cls.__name__ == "Connection"


def _position(file: io.IOBase, work: str) -> Any:
    try:
        handle = file.fileno()
        if handle <= _STANDARD or (work and _is_written_below(handle, work)):
            return None
    except (OSError, ValueError):
        return None
    try:
        return os.lseek(handle, 0, os.SEEK_CUR)
    except OSError:
        return _of_pipe(handle)


def _is_written_below(handle: int, work: str) -> bool:
    mode = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE
    return mode != os.O_RDONLY and os.readlink(f"/proc/self/fd/{handle}").startswith(work + os.sep)


def _of_pipe(handle: int) -> Any:
    """Return the times of a pipe's last write and read, and the number of unread bytes."""
    try:
        found = os.fstat(handle)
        if stat.S_ISSOCK(found.st_mode):
            return UNKNOWN
        unread = fcntl.ioctl(handle, termios.FIONREAD, bytes(4))
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_atime_ns, unread)


def _traffic(connection: socket.socket) -> Any:
    """Return the bytes sent and received over a connection; None if it is closed."""
    try:
        socket.socket.getpeername(connection)
    except OSError:
        return None
    with suppress(OSError, struct.error):
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            return _TCP_COUNTS.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_COUNTS.size))
    return UNKNOWN


def _time_used(process: Any) -> Any:
    """Return the CPU ticks that a child process has used; None once it has ended."""
    own = vars(process)
    number = own.get("pid") if isinstance(process, Popen) else getattr(own.get("_popen"), "pid", None)
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (fields[11], fields[12])
