"""
Lists, for `verify-resume`, the files that this process writes outside its work folder. No checkpoint includes them.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path, PurePath
from typing import Any

from spotrun.exactness.trace_file import FILE_VARIABLE, INSTANCES_VARIABLE

PATHS_MAX = 1_000
"""Maximum number of paths that are recorded."""
CACHES = ("/__pycache__/", "/torchinductor_")
_WRITES = os.O_WRONLY | os.O_RDWR
_OPEN_FILES = Path("/proc/self/fd")


class OutsideFiles:
    """
    Records each file that Python code opens for writing or creates by renaming. Recording begins when this object is
    made. Files that are already open then are recorded too, if /proc lists them. A file that a C library opens later is
    not recorded, because that call does not go through Python.
    """

    def __init__(self) -> None:
        self._paths: set[str] = set()
        known = [os.environ[name] for name in (FILE_VARIABLE, INSTANCES_VARIABLE) if name in os.environ]
        self._apart = tuple({*known, *map(os.path.realpath, known)})
        self._see_open_ones()
        sys.addaudithook(self._heard)

    def written(self) -> tuple[str, ...]:
        """
        Return the recorded files that still exist. Some are left out, because they always differ from process to
        process: files in the folders of spotrun's instances, trace files, and the caches of Python and `torch.compile`.
        """
        there = {os.path.realpath(path) for path in self._paths.copy() if _is_file(path)}
        return tuple(sorted(path for path in there if self._counts(path)))

    def _counts(self, path: str) -> bool:
        return not path.startswith(self._apart) and not any(folder in path for folder in CACHES)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & _WRITES:
                self._add(path)
        elif event == "os.rename":
            self._add(arguments[1])
        elif event == "sqlite3.connect":
            self._add(arguments[0])

    def _add(self, path: object) -> None:
        """
        Record `path`. If it is not a valid path, do nothing: the script's call that uses it fails anyway, with a better
        message.
        """
        if not isinstance(path, str | bytes | PurePath) or len(self._paths) >= PATHS_MAX:
            return
        try:
            whole = os.path.abspath(os.fsdecode(path))
        except OSError:
            return  # the path is relative to a folder that was removed
        if self._counts(whole):
            self._paths.add(whole)

    def _see_open_ones(self) -> None:
        for name in os.listdir(_OPEN_FILES) if _OPEN_FILES.is_dir() else ():
            try:
                if os.lstat(_OPEN_FILES / name).st_mode & stat.S_IWUSR:
                    self._add(os.readlink(_OPEN_FILES / name))
            except OSError:
                continue  # it was the descriptor by which the folder was listed


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
