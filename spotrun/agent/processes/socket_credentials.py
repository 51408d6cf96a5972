"""Identifies the process at the other end of a Unix socket, and tells whether it belongs to this agent's trainer."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from spotrun import proc

_CREDENTIALS = struct.Struct("3i")
ABOVE_MAX = 1000
"""Maximum ancestors of a process. Reads while processes end and ids are reused could go round in a circle."""


class Peer(NamedTuple):
    """
    A process as the kernel knows it (SO_PEERCRED, unix(7)), which no process can forge. `pid` is 0 if it cannot be seen
    here.
    """

    pid: int
    uid: int


def peer_of(sock: socket.socket) -> Peer:
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def why_stranger(peer: Peer, trainer: int, variable: str, value: str) -> str:
    """
    Return why a process does not belong to the process `trainer`; "" if it does. It does if it is in its session, or
    descends from it, or was started with the variable of that value, which no other trainer has: a process that began a
    session of its own and lost its parent still has that.
    """
    if peer.uid != os.geteuid():
        return f"process {peer.pid} is user {peer.uid}'s, and the training is user {os.geteuid()}'s"
    if _is_in_session(peer.pid, trainer) or _descends(peer.pid, trainer):
        return ""
    if peer.pid in proc.started_with(variable, value):
        return ""
    return f"process {peer.pid} is not of this training"


def _is_in_session(pid: int, trainer: int) -> bool:
    try:
        return pid > 0 and os.getsid(pid) == trainer
    except ProcessLookupError:
        return False


def _descends(pid: int, trainer: int) -> bool:
    for _ in range(ABOVE_MAX):
        found = proc.stat(pid) if pid > 1 else None
        if found is None:
            return False
        if trainer in (found.mark.pid, found.parent):
            return True
        pid = found.parent
    return False
