"""
Checks whether the members of a gang can reach one another over the network. A member that reports to the store may
still be cut off from the other members, so this has to be checked separately.

Each agent has a door: a socket at its member's address that accepts connections and closes them immediately. Every few
seconds, each agent connects to the other members' doors. The kernel accepts the connections, so a door
answers even if its agent hangs. An answer shows only that the network works, not that the agent works.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from spotrun.clock import Clock
from spotrun.run.gang import MemberName
from spotrun.run.state import Attempt, RunState

UNREACHED_S = 30.0
"""Seconds of run time without an answer from a door after which its member counts as unreachable (protocol 44)."""
UNREACHED_MIN_S = 10.0
"""
Lower limit of UNREACHED_S in seconds of system time: a busy machine is slow, and a killed agent needs time to
restart.
"""
TRIES_EVERY_S = 5.0
TRIES_EVERY_MIN_S = 0.5
"""Minimum seconds of system time between two tries to connect."""
ANSWERS_WITHIN_S = 3.0
"""Maximum seconds of system time to wait for an answer."""
BACKLOG = 64


class DoorAddress(NamedTuple):
    address: str
    port: int


class Door:
    """
    A socket that accepts connections until `close` is called. If the agent has restarted, `port` is the door's previous
    port, which the other members already know; otherwise, `port` is 0. If another program uses
    `port`, the door gets a new port.

    Raises:
        OSError: `address` does not belong to this machine.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        try:
            self._socket = socket.create_server((address, port), backlog=BACKLOG)
        except OSError:
            if not port:
                raise
            self._socket = socket.create_server((address, 0), backlog=BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._work, name="door", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                if self._socket.fileno() < 0:
                    return

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._socket.close()


class Connectivity:
    """A thread that repeatedly connects to the doors of the gang's other members."""

    def __init__(self, clock: Clock, doors: Mapping[MemberName, DoorAddress]) -> None:
        self._clock = clock
        self._doors = dict(doors)
        self._stop = threading.Event()
        self.begins()

    def start(self) -> None:
        if self._doors:
            threading.Thread(target=self._work, name="reach", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def begins(self) -> None:
        """
        Start measuring how long each member has not answered. Call this when a trainer has started.
        """
        self._reached_s = dict.fromkeys(self._doors, self._clock.monotonic())

    @property
    def unreached(self) -> tuple[MemberName, ...]:
        limit_s = max(UNREACHED_S, UNREACHED_MIN_S * self._clock.scale)
        now_s = self._clock.monotonic()
        return tuple(name for name, at_s in self._reached_s.items() if now_s - at_s >= limit_s)

    def _work(self) -> None:
        pause_s = max(TRIES_EVERY_MIN_S, TRIES_EVERY_S / self._clock.scale)
        with ThreadPoolExecutor(len(self._doors), "reach") as pool:
            while not self._stop.wait(pause_s):
                answers = pool.map(_answers, self._doors.values())
                for name, answered in zip(self._doors, answers, strict=True):
                    if answered:
                        self._reached_s[name] = self._clock.monotonic()


def _answers(door: DoorAddress) -> bool:
    try:
        socket.create_connection(door, ANSWERS_WITHIN_S).close()
    except OSError:
        return False
    return True


def doors_of_others(state: RunState, attempt: Attempt, own: MemberName) -> dict[MemberName, DoorAddress]:
    """
    Return the addresses and ports of the other members' doors, except for members whose agents could not open a door.
    """
    known = zip(attempt.names, state.members_of(attempt), strict=True)
    return {
        name: DoorAddress(member.ready.address, member.ready.door)
        for name, member in known
        if name != own and member.ready is not None and member.ready.door is not None
    }
