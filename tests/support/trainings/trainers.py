"""Two ways to start a trainer: forked from a process that has imported everything, and in a Python of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from spotrun import trainer_link
from tests.support.repository import ROOT

SITE = "site"
"""The folder of a trainer's that comes first in sys.path."""
ENTRY_POINTS = """
[pytorch_lightning.callbacks_factory]
spotrun = spotrun.lightning.factory:for_pytorch_lightning
[lightning.pytorch.callbacks_factory]
spotrun = spotrun.lightning.factory:for_lightning
"""


def install_entry_points(folder: Path) -> str:
    """A folder for sys.path that declares spotrun's entry points; harmless beside an installed spotrun."""
    info = folder / "spotrun-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spotrun\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return str(folder)


class Zygote:
    """A process with everything imported, and with `more`, which forks trainers."""

    def __init__(self, folder: Path, *more: str) -> None:
        self._sock, theirs = socket.socketpair()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([install_entry_points(folder / SITE), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        environment.pop(trainer_link.AGENT, None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.trainings.zygote", str(theirs.fileno()), *more],
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        theirs.close()
        self._answers = self._sock.makefile("r")
        assert self._answers.readline() == "ready\n"

    def imports(self, *modules: str) -> None:
        """Import these too, for a test whose trainers would do so one after the other."""
        self._sock.sendall(json.dumps({"import": modules}).encode() + b"\n")
        assert self._answers.readline() == "0\n"

    def start(self, job: dict, address: str | None, log: Path) -> int:
        """`address` is the path of its agent's socket."""
        self._sock.sendall(json.dumps({"job": job, "log": str(log), "address": address}).encode() + b"\n")
        return int(self._answers.readline())

    def end(self, pid: int) -> int:
        """Wait for the trainer, and end what it left (data loading workers); its exit code, -9 for SIGKILL."""
        self._sock.sendall(json.dumps({"wait": pid}).encode() + b"\n")
        return int(self._answers.readline())

    def alone(self, job: dict, folder: Path) -> dict:
        """The same training without an agent."""
        folder.mkdir(parents=True, exist_ok=True)
        job = job | {"trace": str(folder / "trace"), "result": str(folder / "result.json")}
        assert self.end(self.start(job, None, folder / "log")) == 0, (folder / "log").read_text()[-3000:]
        return json.loads((folder / "result.json").read_text())

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)  # processes that this one has forked may still hold the socket
        self._sock.close()
        self._answers.close()
        self._process.wait(20)


class Spawner:
    """In place of a Zygote: a Python of its own for each trainer, as the real agent starts it."""

    def __init__(self, folder: Path) -> None:
        own = os.environ.get("PYTHONPATH")
        path = [install_entry_points(folder / SITE), str(ROOT), *([own] if own else [])]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        self._running: dict[int, subprocess.Popen] = {}

    def start(self, job: dict, address: str, log: Path) -> int:
        with open(log, "a") as file:
            process = subprocess.Popen(
                [sys.executable, job["script"], *job.get("args", [])],
                env=self._environment | {trainer_link.AGENT: address},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._running[process.pid] = process
        return process.pid

    def end(self, pid: int) -> int:
        code = self._running.pop(pid).wait(60)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        return code
