"""
A network of its own for each of some machines that are processes here, and a switch between them, whose cables can be
pulled out. What is on this machine's own loopback is reached through sockets inside. Nothing is added to the networks
outside. It takes root.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from functools import cache
from os import geteuid

from tests.support.own_namespaces import Way, serve_inside, stop_serving

_READY = "ip link set lo up && echo ready && exec sleep infinity"
_SWITCH = "ip link add switch type bridge && ip link set switch up && "


@cache
def permitted() -> bool:
    """Whether this user may have them, and this kernel has bridges."""
    if geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        return False
    return subprocess.run(["unshare", "--net", "ip", "link", "add", "switch", "type", "bridge"]).returncode == 0


class Networks:
    """That of machine N has the address 10.77.0.(N + 1)."""

    def __init__(self, machines: int) -> None:
        self._listening: list[socket.socket] = []
        self._switch = _hold(_SWITCH + _READY)
        self._machines = [_hold(_READY) for _ in range(machines)]
        for number, machine in enumerate(self._machines):
            cable = f"cable{number}"
            peer = ["peer", "name", "eth0", "netns", str(machine.pid)]
            _inside(self._switch, "ip", "link", "add", cable, "type", "veth", *peer)
            _inside(self._switch, "ip", "link", "set", cable, "master", "switch", "up")
            _inside(machine, "ip", "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            _inside(machine, "ip", "link", "set", "eth0", "up")

    def address(self, number: int) -> str:
        return f"10.77.0.{number + 1}"

    def prefix(self, number: int) -> list[str]:
        """What a command of that machine begins with."""
        return ["nsenter", f"--net=/proc/{self._machines[number].pid}/ns/net"]

    def lead_out(self, number: int, port: int) -> None:
        """Whoever connects to that port of the machine's loopback reaches the same port of ours."""
        here = ("127.0.0.1", port)
        self._listening += serve_inside(self._machines[number].pid, [Way(here, here)])

    def pull_out(self, number: int) -> None:
        _inside(self._switch, "ip", "link", "set", f"cable{number}", "down")

    def plug_in(self, number: int) -> None:
        _inside(self._switch, "ip", "link", "set", f"cable{number}", "up")

    def close(self) -> None:
        stop_serving(self._listening)
        for holder in (*self._machines, self._switch):
            holder.kill()
            holder.wait()


def _hold(script: str) -> subprocess.Popen[bytes]:
    """A process in a network of its own, which lasts as long as it."""
    process = subprocess.Popen(["unshare", "--net", "bash", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    return process


def _inside(holder: subprocess.Popen[bytes], *command: str) -> None:
    subprocess.run(["nsenter", f"--net=/proc/{holder.pid}/ns/net", *command], check=True)
