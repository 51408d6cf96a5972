"""
A pytest plugin that forks spotrun's own processes from one that has its imports, instead of starting each anew.

    pytest -p tests.plugins.warm tests/runs

An agent, a command or a trainer spends most of its start on imports, and the tests start a thousand of them. So each
process of tests has a server (tests/plugins/warm_server.py), and `subprocess.Popen` asks it for the modules in
`MODULES` and the trainers in `SCRIPTS`. What comes back is a child like any other: it has an id, signals, an exit code,
and its own environment in /proc. A start that asks for more, for another Python or for a working directory as root of
imports, is a start as always.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from spotrun.autoload import FOLDER as AUTOLOAD
from spotrun.exactness.trace_file import FILE_VARIABLE
from tests.support.repository import ROOT

MODULES = frozenset({"spotrun", "spotrun.agent", "spotrun.agent.bootstrap", "spotrun.clouds.local.supervisor"})
SCRIPTS = frozenset({"filed.py", "folds.py", "quick.py", "waits_for_data.py"})
"""
The scripts of tests/support/jobs that a server can run: those that import torch and Lightning at once. Others test what
a trainer does while it imports, or the order of its sets, which PYTHONHASHSEED decides when a Python starts.
"""
ADDRESS = "SPOTRUN_TESTS_WARM"
"""Variable with the address of the server, for the processes that it has started: they start some too."""
ROOM = "x" * 16_000
"""Makes a server's arguments and variables so long that those of any process fit in their place."""
AT_IMPORT = frozenset(
    {"SPOTRUN_BEGUN_AFTER_S", "SPOTRUN_HANG_FLOOR_S", "SPOTRUN_REST_FLOOR_S", "SPOTRUN_ROOM_WITHIN_S"}
)
"""What modules of spotrun read when they are imported. Each set of values has a server."""
SET_BY_AGENTS = ("PYTHONFAULTHANDLER", "PYTHONHASHSEED", "PYTHONUNBUFFERED")
"""Variables that an agent sets for its trainers. All scripts of a server share the server's order of sets."""
PR_SET_CHILD_SUBREAPER = 36
Preexec = Callable[[], object] | None


class Program(NamedTuple):
    """A module (`python -m name arguments`, with -P if `safe_path`), or a script (`python name arguments`)."""

    name: str
    is_module: bool
    safe_path: bool
    arguments: Sequence[str]

    @property
    def command(self) -> list[str]:
        options = [*(["-P"] if self.safe_path else []), *(["-m"] if self.is_module else [])]
        return [sys.executable, *options, self.name, *self.arguments]


class Start(NamedTuple):
    """A process to start. `fds` are its open files, by their numbers there and here."""

    program: Program
    environment: Mapping[str, str]
    folder: str
    fds: Mapping[int, int]
    new_session: bool


def program_of(args: object, executable: object) -> Program | None:
    """Return what a command runs; None if no server can run it."""
    if executable is not None or not isinstance(args, list | tuple) or not all(isinstance(each, str) for each in args):
        return None
    safe_path = list(args[1:2]) == ["-P"]
    python, *words = (*args[:1], *args[1 + safe_path :])
    if python != sys.executable:
        return None
    if words[:1] == ["-m"] and words[1:2] and words[1] in MODULES:
        return Program(words[1], True, safe_path, words[2:])
    if words and Path(words[0]).name in SCRIPTS and not safe_path:
        return Program(words[0], False, False, words[1:])
    return None


def is_usual(environment: Mapping[str, str], program: Program) -> bool:
    """
    Return True if a Python with these variables starts as the server did, or can do the rest after a fork. A trainer
    that `verify-resume` traces cannot: its stack, with all local variables, begins with that of its agent.
    """
    paths = {Path(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path}
    if program.is_module:
        return paths <= {ROOT} and _of_python(environment) == USUAL
    if FILE_VARIABLE in environment:
        return False
    return paths <= {ROOT, AUTOLOAD} and _of_python(environment, SET_BY_AGENTS) == _of_python(USUAL, SET_BY_AGENTS)


def _of_python(environment: Mapping[str, str], but: Sequence[str] = ()) -> dict[str, str]:
    return {
        name: text
        for name, text in environment.items()
        if name.startswith(("PYTHON", "LD_")) and name not in ("PYTHONPATH", *but)
    }


USUAL = _of_python(os.environ)
OTHERS = {name: text for name, text in os.environ.items() if not name.startswith(("SPOTRUN_", "PYTHON", "LD_"))}
"""
The other variables of this process before any test: a server with a variable that one test sets would be killed when
the test kills all processes with its variable.
"""


class Servers:
    """The servers of a process of tests, each from when it is first needed until the process ends."""

    def __init__(self) -> None:
        self._pid = 0
        self._addresses: dict[frozenset[tuple[str, str]], str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def start(self, wanted: Start, preexec: Preexec) -> int | None:
        """Start a process, which becomes a child of this one. Return its id; None if it needs another start."""
        if preexec is not None:
            return None
        with self._lock:
            address = self._server_for(wanted.environment)
            with _subreaper():
                return ask(address, wanted)

    def _server_for(self, environment: Mapping[str, str]) -> str:
        if self._pid != os.getpid():  # forked: the servers are those of another process
            self._pid, self._addresses = os.getpid(), {}
        values = frozenset((name, environment[name]) for name in AT_IMPORT & environment.keys())
        if values not in self._addresses:
            self._addresses[values] = self._serve(dict(values))
        return self._addresses[values]

    def _serve(self, values: Mapping[str, str]) -> str:
        address = f"spotrun-tests-{secrets.token_hex(8)}"
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.plugins.warm_server", address, ROOM],
            env={**OTHERS, **USUAL, **values, "SPOTRUN_TESTS_ROOM": ROOM},
            cwd=ROOT,
            stdin=subprocess.PIPE,  # the server ends when this end is closed
            stdout=subprocess.PIPE,
        )
        self._processes.append(server)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", "the server of warm processes did not start"
        return address


def ask(address: str, wanted: Start) -> int:
    """Ask a server for a process. It becomes a child of the nearest subreaper above the server."""
    data = json.dumps(wanted._asdict() | {"fds": list(wanted.fds)}).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", wanted.fds.values()))]
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\0" + address)
        link.sendmsg([len(data).to_bytes(4, "big")], rights)
        link.sendall(data)
        with link.makefile() as answer:
            return int(answer.readline())


@contextmanager
def _subreaper() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def intercept(start: Callable[[Start, Preexec], int | None]) -> None:
    """Make `subprocess.Popen` start processes by `start`. Those for which it returns None start as always."""
    cold: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute(
        self: subprocess.Popen[bytes],
        args: object,
        executable: object,
        preexec: Preexec,
        close_fds: bool,
        pass_fds: Sequence[int],
        folder: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        *rest: Any,
    ) -> None:
        environment = dict(os.environ if env is None else env)
        _, _, shell, stdin, _, _, stdout, _, stderr, *settings, new_session, group = rest
        pid = None
        if (
            (program := program_of(args, executable)) is not None
            and is_usual(environment, program)
            and (close_fds, shell, *settings, group) == (True, False, True, None, None, None, -1, -1)
        ):
            given = enumerate((stdin, stdout, stderr))
            fds = {number: number if fd == -1 else fd for number, fd in given} | {fd: fd for fd in pass_fds}
            pid = start(Start(program, environment, os.fspath(folder or os.getcwd()), fds, new_session), preexec)
        if pid is None:
            cold(self, args, executable, preexec, close_fds, pass_fds, folder, env, *rest)
            return
        self.pid = pid
        self._child_created = True  # type: ignore[attr-defined]
        self._close_pipe_fds(*rest[3:9])  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]


def pytest_configure() -> None:
    intercept(Servers().start)
