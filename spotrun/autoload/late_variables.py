"""
Lets a gang's trainer start before its place in the gang is known.

The trainer runs its script, which imports its modules. When the script reads a variable that depends on the attempt
(its rank, the address of the others), or starts another program, it waits until the agent has written these variables
into a file. So no program can tell that it was started without them.

Like sitecustomize.py, this module runs in the user's Python, and imports only a few modules of the standard library.
"""

from __future__ import annotations

import os
import sys
from time import sleep

MYPY = False
if MYPY:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

LATE = "SPOTRUN_LATE_VARIABLES"
"""Environment variable: the names of the late variables, separated by commas; a space; the path of the file."""
WAITING = ".waiting"
"""Suffix of the empty file that is made next to the file of the variables when the script begins to wait."""
LOOK_S = 0.02
READS_ITS_OWN = "tqdm.utils"
"""A module that goes through all variables when it is imported, but uses only its own."""


class LateVariables:
    """The variables `names`, which the agent will write into the file `path`, as JSON."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        self._path = path
        self._names = frozenset(names)
        self._kind = type(os.environ)
        self._replaced: list[tuple[Any, str, Any]] = []
        self._came = False

    def hold(self) -> None:
        """Let each use of a late variable, and each start of a program, wait until the variables are there."""
        import _posixsubprocess

        os.environ.__class__ = _waiting(self._kind, self._names, self.wait)
        for name in ("system", "execv", "execve", "posix_spawn", "posix_spawnp"):
            self._replace(os, name)
        self._replace(_posixsubprocess, "fork_exec")
        os.register_at_fork(before=self.wait)

    def wait(self) -> None:
        """Wait for the variables, and set them. Afterwards, `os` is as it was before `hold`."""
        if self._came:
            return
        with open(self._path + WAITING, "w"):
            pass
        while not os.path.exists(self._path):
            sleep(LOOK_S)
        self._set()

    def _set(self) -> None:
        from json import load

        with open(self._path, encoding="utf-8") as file:
            values = load(file)
        os.environ.__class__ = self._kind
        os.environ.update(values)
        for module, name, original in self._replaced:
            setattr(module, name, original)
        self._came = True

    def _replace(self, module: Any, name: str) -> None:
        original: Callable[..., object] = getattr(module, name)

        def waits(*arguments: object, **named: object) -> object:
            self.wait()
            return original(*arguments, **named)

        self._replaced.append((module, name, original))
        setattr(module, name, waits)


def _reads_its_own(frame: Any) -> bool:
    """Return True if the function that goes through all variables in `frame` was called by READS_ITS_OWN."""
    caller = None if frame is None else frame.f_back  # a script outside of its functions has no caller
    return caller is not None and caller.f_globals.get("__name__") == READS_ITS_OWN


def _waiting(kind: Any, names: frozenset[str], wait: Callable[[], None]) -> Any:
    class Waiting(kind):  # type: ignore[misc]
        """`os.environ` while some of its variables are not there yet. Their names can be read, their values not."""

        def __getitem__(self, name: str) -> Any:
            if name in names:
                if _reads_its_own(sys._getframe().f_back):
                    return ""
                wait()
            return kind.__getitem__(self, name)

        def __setitem__(self, name: str, value: str) -> None:
            if name in names:
                wait()
            kind.__setitem__(self, name, value)

        def __delitem__(self, name: str) -> None:
            if name in names:
                wait()
            kind.__delitem__(self, name)

        def __iter__(self) -> Iterator[str]:
            yield from super().__iter__()
            yield from names

        def __len__(self) -> int:
            return int(super().__len__()) + len(names)

    return Waiting


def hold(value: str) -> None:
    """Hold the variables that `value`, the content of `LATE`, names."""
    names, _, path = value.partition(" ")
    del os.environ[LATE]
    LateVariables(path, names.split(",")).hold()
