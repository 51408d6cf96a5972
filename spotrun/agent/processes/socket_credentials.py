"""
Identifies the process at the other end of a Unix socket, and checks whether the process belongs to this agent's
trainer.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from spotrun import proc

_CREDENTIALS = struct.Struct("3i")
ABOVE_MAX = 1000
"""
Maximum number of ancestors that are read. If ids of processes are reused during the reads, the ancestors may form a
circle.
"""


class Peer(NamedTuple):
    """
    A process as the kernel reports it (SO_PEERCRED, unix(7)). The process cannot forge this report. `pid` is 0 if the
    process is not visible in this namespace.
    """

    pid: int
    uid: int


def peer_of(sock: socket.socket) -> Peer:
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def why_stranger(peer: Peer, trainer: int, variable: str, value: str) -> str:
    """
    Return the reason why `peer` does not belong to the process `trainer`; "" if it does. A process belongs to the
    trainer if it is in the trainer's session, if it descends from the trainer, or if it was started with the
    environment variable `variable` set to `value`. Each trainer has a different value. The environment variable is
    needed to recognise processes that have begun a new session and whose parent has ended.
    """
    if peer.uid != os.geteuid():
        return f"process {peer.pid} belongs to user {peer.uid}, and the training to user {os.geteuid()}"
    if _is_in_session(peer.pid, trainer) or _descends(peer.pid, trainer):
        return ""
    if peer.pid in proc.started_with(variable, value):
        return ""
    return f"process {peer.pid} does not belong to this training"


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
