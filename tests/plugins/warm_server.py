"""
The server of tests/plugins/warm.py: has spotrun's imports, and forks the processes that it is asked for.

    process of tests ── asks ──> server
                                   └── first child: ends, so that the second becomes a child of the process of tests
                                         └── second child: becomes `python -m spotrun.agent`, for example
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import io
import itertools
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from tests.plugins.warm import ADDRESS, AUTOLOAD, MODULES, Preexec, Program, Start, ask, intercept
from tests.support.repository import JOBS

ROOMS = (
    *("agent", "checkpoint", "cli", "clouds.local", "folder", "market", "notify", "policy", "report", "run", "runner"),
    *("runs", "spec", "store", "sweep", "verify", "wire"),
)
"""The packages of spotrun that are imported, with all their modules but `MODULES` and `RARE`."""
RARE = frozenset({"spotrun.checkpoint.accelerator", "spotrun.store.gcs", "spotrun.store.s3"})
"""These import a cloud's client, which few processes do, or torch."""
IMPORTED_BY_TRAINERS = ("pytorch_lightning", "spotrun.lightning.callback")
"""Modules that trainers import after tests/support/jobs/fast_imports.py. Other processes do not see them."""
_FD_BYTES = array.array("i").itemsize
_FDS_MAX = 16


class Shown:
    """
    The memory of this process that /proc/PID/cmdline and environ show. In a fork, both are those of the process that it
    was forked from, unless they are overwritten: spotrun and the tests look for processes by their variables.
    """

    def __init__(self) -> None:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        self._command, self._environment = (int(fields[45]), int(fields[46])), (int(fields[47]), int(fields[48]))

    def become(self, command: Iterable[str], environment: Mapping[str, str]) -> None:
        os.environ.clear()  # the C library points into that memory
        os.environ.update(environment)
        _fill(*self._command, command)
        _fill(*self._environment, (f"{name}={text}" for name, text in environment.items()))


def _fill(start: int, end: int, texts: Iterable[str]) -> None:
    block = b"".join(os.fsencode(text) + b"\0" for text in texts)
    assert len(block) < end - start, "there is no room for the process's variables or arguments"
    ctypes.memmove(start, block.ljust(end - start, b"\0"), end - start)


shown = Shown()
hidden: dict[str, ModuleType] = {}
"""Modules that trainers import, by their names. Other processes do not have them, unless they import one."""


class Reveals:
    """A finder of modules for `sys.meta_path`. A process that imports one of the hidden modules has all of them."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        module = hidden.get(name)
        if module is None or module.__spec__ is None or module.__spec__.loader is None:  # fast_imports made it up
            return None
        self._own = module.__spec__
        reveal()
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own


def reveal() -> None:
    for name, module in hidden.items():
        sys.modules.setdefault(name, module)
    hidden.clear()


def main(address: str) -> None:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the process of tests, whose end is the server's
    gc.disable()  # what is imported stays
    _import()
    _import_for_trainers()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy what it looks at
    gc.set_threshold(100_000, 50, 100)
    gc.enable()
    intercept(start)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + address)
        listener.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:  # it is closed at the end
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError, ValueError):  # who asked has been killed
                _answer(link, address)


def _import() -> None:
    for room in ROOMS:
        package = importlib.import_module(f"spotrun.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name not in MODULES | RARE and not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def _import_for_trainers() -> None:
    before = set(sys.modules)
    sys.path.insert(0, str(JOBS))
    for name in ("fast_imports", *IMPORTED_BY_TRAINERS):
        importlib.import_module(name)
    del sys.path[0]
    for name in set(sys.modules) - before:
        hidden[name] = sys.modules.pop(name)
    sys.meta_path.insert(0, Reveals())  # type: ignore[arg-type]


def _answer(link: socket.socket, address: str) -> None:
    size, rights, _, _ = link.recvmsg(4, socket.CMSG_SPACE(_FDS_MAX * _FD_BYTES))
    fds = array.array("i", b"".join(data for _, _, data in rights)).tolist()
    try:
        with link.makefile("rb") as file:
            told = json.loads(file.read(int.from_bytes(size, "big")))
        program = Program(*told.pop("program"))
        told["environment"][ADDRESS] = address
        told["fds"] = dict(zip(told["fds"], fds, strict=True))
        link.sendall(f"{_fork(Start(program, **told))}\n".encode())
    finally:
        for fd in fds:
            os.close(fd)


def _fork(wanted: Start) -> int:
    """Start a process that is not a child of this one. Return its id."""
    read, write = os.pipe()
    with open(read, "rb") as told, open(write, "wb") as tells:
        if (first := os.fork()) == 0:
            if second := os.fork():
                tells.write(str(second).encode())
                tells.flush()
                os._exit(0)
            become(wanted)
        os.waitpid(first, 0)  # from now on, the process that asked is the parent of the second
        tells.close()
        return int(told.read(16))


def start(wanted: Start, preexec: Preexec) -> int | None:
    """
    Start a process from one that a server has started. A process with something to do before it runs is forked from
    this one, which has one thread: only instances of the local cloud start such processes. So is a trainer, for which
    its agent waits. Any other process in a new session comes from the server: whoever starts it does not wait for it.
    """
    is_trainer = not wanted.program.is_module
    if is_trainer and not hidden:  # this is a trainer, too: a fork would go on with its state
        return None
    if preexec is None and not is_trainer:
        return ask(os.environ[ADDRESS], wanted) if wanted.new_session else None
    if (pid := os.fork()) == 0:
        become(wanted, preexec)
    return pid


def become(wanted: Start, preexec: Preexec = None) -> NoReturn:
    """Be what `python -m` would have been."""
    code = 1
    try:
        if wanted.new_session:
            os.setsid()
        _take(wanted.fds)
        os.chdir(wanted.folder)
        _forget_handlers()
        _begin(wanted)
        if preexec is not None:
            preexec()
        code = _run(wanted.program)
    except BaseException:  # noqa: BLE001  nothing is above this
        traceback.print_exc()
    finally:
        os._exit(code)


def _take(fds: Mapping[int, int]) -> None:
    """Have these open files, by their new numbers, and no others."""
    above = max(fds) + 1
    moved = {new: fcntl.fcntl(old, fcntl.F_DUPFD, above) for new, old in fds.items()}
    for new, old in moved.items():
        os.dup2(old, new)
    for one, next_one in itertools.pairwise([*sorted(fds), 1 << 16]):
        if one + 1 < next_one:  # an empty range would close everything above it
            os.closerange(one + 1, next_one)


def _forget_handlers() -> None:
    """Handle signals as a Python that starts. Those that are ignored stay so."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _begin(wanted: Start) -> None:
    """Set what Python sets at its start."""
    program, folder = wanted.program, wanted.folder
    shown.become(program.command, wanted.environment)
    time.tzset()
    tempfile.tempdir = None
    sys.argv, sys.orig_argv = ["-m" if program.is_module else program.name, *program.arguments], program.command
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    beside = folder if program.is_module else os.path.dirname(os.path.join(folder, program.name))
    sys.path[:1] = [*([] if program.safe_path else [beside]), *paths]
    threading.excepthook = threading.__excepthook__
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable(2)
    errors = {0: "strict", 1: "strict", 2: "backslashreplace"}
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        unbuffered = number > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
        file = open(number, "wb" if number else "rb", -1 + unbuffered, closefd=False)  # noqa: SIM115
        by_line = number == 2 or os.isatty(number)
        stream = io.TextIOWrapper(file, "utf-8", errors[number], line_buffering=by_line, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(program: Program) -> int:
    code, interrupted = 0, False
    try:
        if program.is_module:
            sys.modules.pop(program.name, None)
            runpy.run_module(program.name, run_name="__main__", alter_sys=True)
        else:
            _run_script(program.name)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001  as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        interrupted = isinstance(error, KeyboardInterrupt)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def _run_script(path: str) -> None:
    """Be `python path`, which has imported torch and Lightning already."""
    reveal()
    if str(AUTOLOAD) in sys.path:
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    exec(compile(Path(path).read_bytes(), path, "exec"), vars(main))


if __name__ == "__main__":
    main(sys.argv[1])
