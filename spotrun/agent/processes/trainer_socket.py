"""
Accepts connections from the processes of one trainer. Each trainer has a separate Unix socket in the instance's folder.

Only the first process that connects is accepted, and it leads the training. Every other process is refused, and
receives the reason. Each trainer's socket has a different path. So a process that an earlier trainer has left running
cannot connect by mistake: it knows only the earlier path, which no longer exists.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from spotrun import proc
from spotrun.agent.inbox import CameTooLate, Inbox, Stranger
from spotrun.agent.processes.socket_credentials import peer_of, why_stranger
from spotrun.proc import ProcessMark
from spotrun.trainer_link import AGENT, WITHOUT, LinkClosed, TrainerLink, TurnedAway
from spotrun.wire import unix_path

NAME = "link-"
STRANGERS_MAX = 20
"""
Maximum number of refused connections of strangers (processes that do not belong to the trainer) that are logged. A
stranger that tries again and again must not fill the log.
"""
ONE_TRAINING = f"put each training into a separate job, or call fit() several times in one script; {WITHOUT}"


class Entrance:
    """
    The socket of one trainer. The trainer finds it through `address`, which the environment variable `SPOTRUN_AGENT`
    contains. `leader` is the process that leads the training.

    Raises:
        OSError: no socket can be made in the folder.
    """

    def __init__(self, folder: Path, incarnation: Callable[[], int], inbox: Inbox) -> None:
        for old in folder.glob(f"{NAME}*"):
            old.unlink(missing_ok=True)  # of an earlier trainer, or of an agent that crashed
        self.address = str(folder / f"{NAME}{secrets.token_hex(8)}")
        self.leader: ProcessMark | None = None
        self._incarnation = incarnation
        self._inbox = inbox
        self._sock = unix_path.listen(self.address)
        self._strangers = 0
        self._waiting: list[TrainerLink] = []
        self._closed = threading.Event()

    def open(self, trainer: int, leads: Callable[[TrainerLink], None]) -> None:
        """
        Accept connections in a separate thread until `close` is called. `leads` is called with the connection of the
        first process, which leads the training. `leads` welcomes that process, and must not block.
        """
        threading.Thread(target=self._work, args=(trainer, leads), name="entrance", daemon=True).start()

    def close(self) -> None:
        """Remove the socket, so that no process can connect later. Calling this twice does no harm."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._sock.close()
        Path(self.address).unlink(missing_ok=True)

    def forget(self) -> None:
        """Close the connections of refused processes that got no answer. Call this after these processes have ended."""
        while self._waiting:
            self._waiting.pop().close()

    def _work(self, trainer: int, leads: Callable[[TrainerLink], None]) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            with contextlib.suppress(LinkClosed, OSError):
                self._meet(sock, trainer, leads)

    def _meet(self, sock: socket.socket, trainer: int, leads: Callable[[TrainerLink], None]) -> None:
        peer, link = peer_of(sock), TrainerLink(sock)
        mark = _mark_of(peer.pid)
        why = why_stranger(peer, trainer, AGENT, self.address)
        if why or mark is None:
            self._turn_stranger_away(link, why)
        elif self.leader is None:
            self.leader = mark
            leads(link)
        else:
            self._turn_late_one_away(link, peer.pid, self.leader)

    def _turn_stranger_away(self, link: TrainerLink, why: str) -> None:
        self._strangers += 1
        if self._strangers <= STRANGERS_MAX:
            self._inbox.put(Stranger(self._incarnation(), why))
        _turn_away(link, why)

    def _turn_late_one_away(self, link: TrainerLink, pid: int, leader: ProcessMark) -> None:
        """
        Refuse a process that connected after the leader. If the leader still runs, tell the process why.

        If the leader has ended, give the process no answer: it waits, and is killed together with the command. If it
        got an answer, it would print an error, and the leader's error would no longer be the last one in the log.
        """
        alone = not _lives(leader)
        self._inbox.put(CameTooLate(self._incarnation(), pid, leader.pid, alone))
        if alone:
            self._waiting.append(link)
        else:
            _turn_away(link, f"process {leader.pid} of the same command already trains")


def _turn_away(link: TrainerLink, reason: str) -> None:
    try:
        link.send(TurnedAway(reason=reason, hint=ONE_TRAINING))
    finally:
        link.close()


def _mark_of(pid: int) -> ProcessMark | None:
    found = proc.stat(pid)
    return None if found is None else found.mark


def _lives(mark: ProcessMark) -> bool:
    found = proc.stat(mark.pid)
    return found is not None and found.mark == mark and not found.ended
