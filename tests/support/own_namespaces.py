"""
A network, a process tree and a view of the disk of its own, for a machine that is a process tree on this one.

Inside, the metadata service is where clouds have it, at 169.254.169.254; process 1 is the machine's, and the commands
that end a machine are shims under their absolute paths too. Nothing is added to the networks outside: connections go
through sockets that were made inside and are served from here. It takes root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

METADATA = ("169.254.169.254", 80)
ENDING_PATHS = [
    f"{folder}/{name}"
    for folder in ("/sbin", "/usr/sbin", "/bin", "/usr/bin")
    for name in ("shutdown", "poweroff", "halt", "reboot", "systemctl", "init", "telinit")
]
_CLONE_NEWNET = 0x40000000
_CHUNK_BYTES = 1 << 16
_UNSHARE = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
_INSIDE = """
set -e
ip link set lo up
ip address add 169.254.169.254/32 dev lo
mount -t tmpfs none /run
for path in $ENDING; do mount --bind "$TOOLS/systemctl" "$path"; done
if [[ -e /proc/sysrq-trigger ]]; then
    mount --bind "$NOTHING" /proc/sysrq-trigger
    mount -o remount,ro,bind /proc/sysrq-trigger
fi
mount --bind "$HOSTS" /etc/hosts
unset ENDING TOOLS NOTHING HOSTS
echo ready
read -r _
exec >>"$1.log" 2>&1 </dev/null
bash "$1" &
while true; do sleep 1000 & wait; done
"""
"""Sockets of the host's init are below /run. What is left at the end is the init of the machine, which reaps."""


class Way(NamedTuple):
    """What connects to `inside` reaches `outside`."""

    inside: tuple[str, int]
    outside: tuple[str, int]


@cache
def permitted() -> bool:
    """Whether this user may have them."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    return subprocess.run([*_UNSHARE, "mount", "-t", "tmpfs", "none", "/run"], capture_output=True).returncode == 0


class Namespaces:
    """Of one machine, from `start` to `close`."""

    def __init__(self) -> None:
        self._listening: list[socket.socket] = []

    def start(
        self,
        script: Path,
        tools: Path,
        environment: Mapping[str, str],
        ways: Iterable[Way],
        hosts: Iterable[str] = (),
    ) -> None:
        """
        `script` is run as root inside, and says what it has to say into a file beside it, SCRIPT.log. `hosts` are names
        of the metadata service.
        """
        nothing, known = script.with_suffix(".nothing"), script.with_suffix(".hosts")
        nothing.touch()
        known.write_text(f"127.0.0.1 localhost\n{METADATA[0]} {' '.join(hosts)}\n")
        paths = {os.path.realpath(path) for path in ENDING_PATHS if Path(path).exists()}
        masked = {"ENDING": " ".join(sorted(paths)), "TOOLS": str(tools), "NOTHING": str(nothing), "HOSTS": str(known)}
        process = subprocess.Popen(
            [*_UNSHARE, "bash", "-c", _INSIDE, "bash", str(script)],
            cwd=script.parent,
            env={**environment, **masked},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            assert process.stdout.readline() == b"ready\n"
            self._listening = serve_inside(process.pid, list(ways))
            process.stdin.write(b"go\n")

    def close(self) -> None:
        stop_serving(self._listening)


def serve_inside(pid: int, ways: list[Way]) -> list[socket.socket]:
    """In the network of process `pid`, until the sockets are closed."""
    with ThreadPoolExecutor(1) as pool:  # a thread of its own, which stays inside
        sockets = pool.submit(_listen, pid, [way.inside for way in ways]).result()
    for listening, way in zip(sockets, ways, strict=True):
        threading.Thread(target=_serve, args=(listening, way.outside), daemon=True).start()
    return sockets


def stop_serving(sockets: Iterable[socket.socket]) -> None:
    for listening in sockets:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        listening.close()


def _listen(pid: int, addresses: list[tuple[str, int]]) -> list[socket.socket]:
    """A socket belongs to the network that its maker was in."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net", "rb") as network:
        if libc.setns(network.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    return [socket.create_server(address, backlog=128) for address in addresses]


def _serve(listening: socket.socket, outside: tuple[str, int]) -> None:
    while True:
        try:
            near, _ = listening.accept()
        except OSError:
            return
        try:
            far = socket.create_connection(outside)
        except OSError:
            near.close()
            continue
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until one of the two has had enough."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK_BYTES):
            sink.sendall(chunk)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
    # closed by whoever forgets it last: the other thread may still be in it
