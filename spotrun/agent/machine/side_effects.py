"""
Finds changes that the job's `setup` makes outside of the run's folders. Such changes cannot be packed into the setup
cache, so a `setup` that makes them has to run on each instance.

This is a check, not a proof. It finds mounted file systems, running processes, and names that were added to or removed
from the folders where programs, packages and data usually are. Caches do not count, because programs refill them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

FOLDERS = (
    *("/", "/opt", "/srv", "/mnt", "/media", "/data", "/home", "/etc/profile.d", "/etc/ld.so.conf.d"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/include", "/usr/share"),
    *("/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/local/share"),
)
CACHES = frozenset({".cache", ".triton", ".nv", ".wget-hsts", ".lesshst", ".python_history", ".bash_history"})
MOUNTS = Path("/proc/self/mounts")


class SideEffects:
    """
    Records the state of the machine outside of the run's folders. `since` returns the paths that have changed after
    this object was made.
    """

    def __init__(self, home: Path, folders: Sequence[str] = FOLDERS) -> None:
        self._home = home
        self._folders = folders
        self._names = self._look()
        self._mounts = _mounts()

    def since(self) -> list[str]:
        """Return the paths that have appeared or disappeared, including mount points."""
        return sorted((self._names ^ self._look()) | (_mounts() - self._mounts))

    def _look(self) -> set[str]:
        system = {path for folder in self._folders for path in _names_in(folder)}
        return system | {path for path in _names_in(str(self._home)) if os.path.basename(path) not in CACHES}


def _names_in(folder: str) -> set[str]:
    """
    Return the paths directly in `folder`. Deeper levels are not read, because they contain hundreds of thousands of
    files, and a new instance's disk is slow on the first read.
    """
    try:
        return {os.path.join(folder, name) for name in os.listdir(folder)}
    except OSError:
        return set()


def _mounts() -> set[str]:
    return {line.split()[1] for line in MOUNTS.read_text().splitlines()}
